"""Configuration of the trainer: the sections of all packages in one namespace, and the typed container of them."""

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
"""Classes that `_target_` in a YAML file may name; no other class is ever constructed from a file."""


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

    def installed_rules(self) -> Iterable[RuleLike]:
        """Return the rules of every package."""
        rules: Iterable[RuleLike] = import_module("mb_trainer.preflight").RULES  # avoids an import cycle
        return rules
