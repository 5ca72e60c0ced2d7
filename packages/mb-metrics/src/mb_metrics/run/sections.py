"""Protocols of the configuration sections and of the model from which training metrics are built."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mb_metrics.config import LoggerConfig
from mb_metrics.run.training_context import ModelGroups


class TrainSection(Protocol):
    """Fields that are read from section `train`."""

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per microbatch and rank."""

    @property
    def train_iters(self) -> int | None:
        """Length of the run in steps."""

    @property
    def train_samples(self) -> int | None:
        """Length of the run in samples."""


class WrapperSection(Protocol):
    """Fields that are read from section `ddp`."""

    @property
    def use_megatron_fsdp(self) -> bool:
        """Whether Megatron FSDP shards weights, gradients and optimizer state."""

    @property
    def use_distributed_optimizer(self) -> bool:
        """Whether the optimizer state is sharded."""

    @property
    def grad_reduce_in_fp32(self) -> bool:
        """Whether gradients are accumulated in float32."""


class DistSection(Protocol):
    """Field that is read from section `dist`."""

    @property
    def use_torch_fsdp2(self) -> bool:
        """Whether torch's FSDP2 shards weights, gradients and optimizer state."""


class OptimizerSection(Protocol):
    """Field that is read from section `optimizer`."""

    @property
    def decoupled_lr(self) -> float | None:
        """Learning rate of parameters with a separate schedule; None: there are none."""


class MetricsSettings(Protocol):
    """Sections of a run that metrics are built from, such as Megatron-Bridge's ConfigContainer."""

    @property
    def logger(self) -> LoggerConfig:
        """Recorded metrics and their destinations."""

    @property
    def model(self) -> Any:
        """Model, with Megatron's field names; its parallel degrees are not read."""

    @property
    def train(self) -> TrainSection:
        """Length of the run and its microbatches."""

    @property
    def ddp(self) -> WrapperSection:
        """Data parallelism."""

    @property
    def dist(self) -> DistSection:
        """Sharding by torch."""

    @property
    def optimizer(self) -> OptimizerSection:
        """Optimizer."""


class LocalModules(Protocol):
    """Modules of this rank in a model with per-module parallelism."""

    @property
    def wrapped(self) -> Mapping[str, Any]:
        """Module -> its (wrapped) torch module, for the modules of this rank."""

    @property
    def local_groups(self) -> Mapping[str, Any]:
        """Module -> its process groups, for the modules of this rank."""

    @property
    def paths(self) -> Mapping[str, str]:
        """Module -> its attribute path in the complete model, for all modules; identical on all ranks."""


class MeasuredModel(Protocol):
    """Model that is trained, wrapped for data parallelism."""

    @property
    def chunks(self) -> Sequence[Any]:
        """Model chunks of this rank."""

    @property
    def groups(self) -> ModelGroups:
        """Process groups."""

    @property
    def device(self) -> Any:
        """Device of this rank."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer, including padding."""

    @property
    def modules(self) -> LocalModules | None:
        """Modules with per-module parallelism; None: one model over `groups`."""
