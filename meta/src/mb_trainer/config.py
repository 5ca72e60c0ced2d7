"""Configuration of the trainer: the sections of all packages in one namespace, and the typed container of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

import mb_config
import mb_plan
from mb_checkpoint import CheckpointConfig as CheckpointConfig
from mb_config import DistributedDataParallelConfig as DistributedDataParallelConfig
from mb_config import DistributedInitConfig as DistributedInitConfig
from mb_config import MixedPrecisionConfig as MixedPrecisionConfig
from mb_config import OptimizerConfig as OptimizerConfig
from mb_config import OptimizerConfigOverrideProvider as OptimizerConfigOverrideProvider
from mb_config import RNGConfig as RNGConfig
from mb_config import Rule
from mb_config import SchedulerConfig as SchedulerConfig
from mb_config import TrainingConfig as TrainingConfig
from mb_config import ValidationConfig as ValidationConfig
from mb_data import DataloaderConfig as DataloaderConfig
from mb_data import DatasetProvider as DatasetProvider
from mb_data import DrawnShapesConfig as DrawnShapesConfig
from mb_data import FIMTextCorpusConfig as FIMTextCorpusConfig
from mb_data import FinetuningDatasetConfig as FinetuningDatasetConfig
from mb_data import GPTDatasetConfig as GPTDatasetConfig
from mb_data import GPTFIMDatasetConfig as GPTFIMDatasetConfig
from mb_data import HuggingFaceStreamConfig as HuggingFaceStreamConfig
from mb_data import MockGPTDatasetConfig as MockGPTDatasetConfig
from mb_data import PackedSequenceSpecs as PackedSequenceSpecs
from mb_data import SumsFinetuningConfig as SumsFinetuningConfig
from mb_data import T5DatasetConfig as T5DatasetConfig
from mb_data import T5TextCorpusConfig as T5TextCorpusConfig
from mb_data import TextCorpusConfig as TextCorpusConfig
from mb_data import TokenizerConfig as TokenizerConfig
from mb_metrics import LoggerConfig as LoggerConfig
from mb_metrics import ProfilingConfig as ProfilingConfig
from mb_metrics import TensorInspectConfig as TensorInspectConfig
from mb_models import PEFT as PEFT
from mb_models import CanonicalLoRA as CanonicalLoRA
from mb_models import DoRA as DoRA
from mb_models import GPTModelConfig as GPTModelConfig
from mb_models import LoRA as LoRA
from mb_models import MambaModelConfig as MambaModelConfig
from mb_models import MimoModelConfig as MimoModelConfig
from mb_models import T5ModelConfig as T5ModelConfig
from mb_overlap import CommOverlapConfig as CommOverlapConfig
from mb_resilience import FaultToleranceConfig as FaultToleranceConfig
from mb_resilience import InProcessRestartConfig as InProcessRestartConfig
from mb_resilience import NVRxStragglerDetectionConfig as NVRxStragglerDetectionConfig
from mb_resilience import RerunStateMachineConfig as RerunStateMachineConfig
from mb_resilience import StragglerDetectionConfig as StragglerDetectionConfig


@dataclass(kw_only=True)
class HuggingFaceSource:
    """Part of a model section that is made of a Hugging Face model."""

    hf_model_id: str | None = None
    """Name of the model that the architecture is that of; for information."""
    hf_model_revision: str | None = None
    """Revision of that model; for information."""
    hf_weights: str | None = None
    """Folder of weights that a run starts from, unless `checkpoint.pretrained_checkpoint` is set."""


@dataclass(kw_only=True)
class ConfigContainer(mb_config.ConfigContainer):
    """Configuration of a run, one section per subsystem."""

    model: GPTModelConfig | MambaModelConfig | T5ModelConfig | MimoModelConfig
    """Model, and the number of ranks over which it is split."""
    dataset: (
        GPTDatasetConfig
        | MockGPTDatasetConfig
        | TextCorpusConfig
        | T5DatasetConfig
        | T5TextCorpusConfig
        | GPTFIMDatasetConfig
        | FIMTextCorpusConfig
        | FinetuningDatasetConfig
        | SumsFinetuningConfig
        | DrawnShapesConfig
        | HuggingFaceStreamConfig
        | DatasetProvider
    )
    """Dataset."""
    logger: LoggerConfig
    """Metrics, and where they are written."""
    tokenizer: TokenizerConfig
    """Tokenizer; a text corpus without one builds its own."""
    checkpoint: CheckpointConfig
    """Checkpoints: content, interval and folders."""
    rerun_state_machine: RerunStateMachineConfig = field(default_factory=RerunStateMachineConfig)
    """Repeated computation of results to detect faulty hardware."""
    comm_overlap: CommOverlapConfig | None = None
    """Overlap of communication and computation; None keeps the settings of model, optimizer and DDP."""
    ft: FaultToleranceConfig | None = None
    """Fault tolerance under ft_launcher."""
    straggler: StragglerDetectionConfig | None = None
    """Straggler detection by Megatron."""
    nvrx_straggler: NVRxStragglerDetectionConfig | None = None
    """Straggler detection by nvidia-resiliency-ext."""
    inprocess_restart: InProcessRestartConfig | None = None
    """Restart after a fault within the same process."""
    profiling: ProfilingConfig | None = field(default_factory=ProfilingConfig)
    """Profilers and the steps they cover; by default none."""
    peft: LoRA | CanonicalLoRA | DoRA | PEFT | None = None
    """Adapters, which are then the only trained parameters; None: all parameters are trained."""
    tensor_inspect: TensorInspectConfig | None = None
    """Statistics of tensors inside the model, collected by nvdlfw-inspect."""

    def installed_rules(self) -> Iterable[Rule]:
        """Return the rules of every package."""
        rules: Iterable[Rule] = import_module(
            "mb_trainer.run.rules"
        ).RULES  # rules of all packages take time to load
        return rules

    def planned_facts(self, facts: Mapping[str, object], *, saves: bool = True) -> Mapping[str, object]:
        """Return facts about the memory and the checkpoints of a resolved run on GPUs; empty if it is not planned."""
        return mb_plan.planned_facts(self.sections(), facts, saves=saves)
