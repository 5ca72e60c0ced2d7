"""The configuration of the trainer: every section of every package in one namespace, and the whole of them typed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

import mb_config
from mb_checkpoint import CheckpointConfig
from mb_config import (
    DistributedDataParallelConfig,
    DistributedInitConfig,
    MixedPrecisionConfig,
    OptimizerConfig,
    OptimizerConfigOverrideProvider,
    RNGConfig,
    RuleLike,
    SchedulerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_data import (
    DataloaderConfig,
    DatasetProvider,
    DrawnShapesConfig,
    FIMTextCorpusConfig,
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    GPTFIMDatasetConfig,
    MockGPTDatasetConfig,
    PackedSequenceSpecs,
    SumsFinetuningConfig,
    T5DatasetConfig,
    T5TextCorpusConfig,
    TextCorpusConfig,
    TokenizerConfig,
)
from mb_metrics import LoggerConfig, ProfilingConfig, TensorInspectConfig
from mb_models import GPTModelConfig, MambaModelConfig, MimoModelConfig, T5ModelConfig
from mb_models.peft.config import PEFT, CanonicalLoRA, DoRA, LoRA
from mb_overlap import CommOverlapConfig
from mb_resilience import (
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
    StragglerDetectionConfig,
)

__all__ = [
    "PEFT",
    "TARGETS",
    "CanonicalLoRA",
    "CheckpointConfig",
    "CommOverlapConfig",
    "ConfigContainer",
    "DataloaderConfig",
    "DatasetProvider",
    "DistributedDataParallelConfig",
    "DistributedInitConfig",
    "DoRA",
    "DrawnShapesConfig",
    "FIMTextCorpusConfig",
    "FaultToleranceConfig",
    "FinetuningDatasetConfig",
    "GPTDatasetConfig",
    "GPTFIMDatasetConfig",
    "GPTModelConfig",
    "InProcessRestartConfig",
    "LoRA",
    "LoggerConfig",
    "MambaModelConfig",
    "MimoModelConfig",
    "MixedPrecisionConfig",
    "MockGPTDatasetConfig",
    "NVRxStragglerDetectionConfig",
    "OptimizerConfig",
    "OptimizerConfigOverrideProvider",
    "PackedSequenceSpecs",
    "ProfilingConfig",
    "RNGConfig",
    "RerunStateMachineConfig",
    "SchedulerConfig",
    "StragglerDetectionConfig",
    "SumsFinetuningConfig",
    "T5DatasetConfig",
    "T5ModelConfig",
    "T5TextCorpusConfig",
    "TensorInspectConfig",
    "TextCorpusConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "ValidationConfig",
]

NAMED_CLASSES = (
    GPTFIMDatasetConfig,
    FIMTextCorpusConfig,
    GPTModelConfig,
    MambaModelConfig,
    MimoModelConfig,
    T5ModelConfig,
    GPTDatasetConfig,
    MockGPTDatasetConfig,
    TextCorpusConfig,
    T5DatasetConfig,
    T5TextCorpusConfig,
    FinetuningDatasetConfig,
    SumsFinetuningConfig,
    DrawnShapesConfig,
    MixedPrecisionConfig,
    OptimizerConfigOverrideProvider,
    LoRA,
    CanonicalLoRA,
    DoRA,
)

TARGETS: Mapping[str, type] = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in NAMED_CLASSES}
"""The classes that `_target_` in a YAML file may name; nothing else is ever constructed from a file."""


@dataclass(kw_only=True)
class ConfigContainer(mb_config.ConfigContainer):
    """Everything that a run is made of, one section per subsystem."""

    model: GPTModelConfig | MambaModelConfig | T5ModelConfig | MimoModelConfig
    """What is trained, and over how many ranks it is split."""
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
        | DatasetProvider
    )
    """What it reads."""
    logger: LoggerConfig
    """What is measured and where it is written."""
    tokenizer: TokenizerConfig
    """Text to numbers; a text corpus without one brings its own."""
    checkpoint: CheckpointConfig
    """What is saved, when and where."""
    rerun_state_machine: RerunStateMachineConfig = field(default_factory=RerunStateMachineConfig)
    """Whether results are computed twice to find faulty hardware."""
    comm_overlap: CommOverlapConfig | None = None
    """Communication beside computation; None leaves the model's, optimizer's and DDP's own settings."""
    ft: FaultToleranceConfig | None = None
    """Fault tolerance under ft_launcher."""
    straggler: StragglerDetectionConfig | None = None
    """Megatron's detection of slow ranks."""
    nvrx_straggler: NVRxStragglerDetectionConfig | None = None
    """Detection of slow ranks by nvidia-resiliency-ext."""
    inprocess_restart: InProcessRestartConfig | None = None
    """Restart after a fault without a new process."""
    profiling: ProfilingConfig | None = field(default_factory=ProfilingConfig)
    """Which steps are profiled, and how; by default none."""
    peft: LoRA | CanonicalLoRA | DoRA | PEFT | None = None
    """Adapters, which alone are trained; None: all parameters are."""
    tensor_inspect: TensorInspectConfig | None = None
    """Statistics of tensors inside the model, by nvdlfw-inspect."""

    def installed_rules(self) -> Iterable[RuleLike]:
        """Return the rules of every package."""
        rules: Iterable[RuleLike] = import_module("mb_trainer.preflight").RULES  # which imports this module
        return rules
