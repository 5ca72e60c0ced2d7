"""Protocols of the callback context, counters and process groups that training metrics read."""

from collections.abc import Mapping
from typing import Any, Protocol

from mb_metrics.recorder.recorded_steps import Value
from mb_schema.save_result import SaveResult


class TrainCounters(Protocol):
    """Counters of a run; at the end of a step they include it."""

    @property
    def step(self) -> int:
        """Completed steps."""

    @property
    def consumed_train_samples(self) -> int:
        """Samples consumed from the training data, over all ranks."""

    @property
    def skipped_train_samples(self) -> int:
        """Samples consumed without training on them."""


class TrainingStep(Protocol):
    """Result of one training step. Tensors may remain on their device; None: not measured."""

    @property
    def step(self) -> int:
        """Completed steps, including this one."""

    @property
    def losses(self) -> Mapping[str, Any]:
        """Loss per name; empty on ranks that do not compute the loss."""

    @property
    def learning_rate(self) -> Value:
        """Learning rate of this step."""

    @property
    def decoupled_learning_rate(self) -> Value:
        """Learning rate of parameters with a separate schedule."""

    @property
    def grad_norm(self) -> Value:
        """Norm of the gradient before clipping."""

    @property
    def num_zeros_in_grad(self) -> Value:
        """Zero entries in the gradient."""

    @property
    def max_attention_logit(self) -> Value:
        """Largest attention logit."""

    @property
    def skipped(self) -> bool:
        """Whether the optimizer skipped the update."""

    @property
    def samples(self) -> int:
        """Sequences trained on, over all ranks."""

    @property
    def tokens(self) -> int | None:
        """Tokens trained on, over all ranks; None: not known."""


class EndOfTraining(Protocol):
    """Result of a training loop."""

    @property
    def reason(self) -> str:
        """Reason for the end of training, such as "finished" or "signal"."""


class MetricsContext(Protocol):
    """Fields of a callback's context that the callbacks of this package read."""

    @property
    def state(self) -> Any:
        """Global state; `state.train_state` has the counters (`TrainCounters`)."""

    @property
    def optimizer(self) -> Any:
        """Optimizer; its method `get_loss_scale()` is called if it has one."""

    @property
    def result(self) -> TrainingStep | None:
        """Result of the step (on_train_step_end)."""

    @property
    def total_loss_dict(self) -> Mapping[str, float] | None:
        """Losses of a complete evaluation (on_eval_end) or of the test (on_test_end).

        None on ranks without them, and if it was aborted.
        """

    @property
    def save(self) -> SaveResult | None:
        """Result of a save (on_checkpoint_save, on_checkpoint_failed)."""

    @property
    def outcome(self) -> EndOfTraining | None:
        """Result of training (on_train_end); None if it ends with an exception."""

    @property
    def checkpoint_work(self) -> str | None:
        """Work that holds the loop: "save", or "finalize" (on_checkpoint_start, on_checkpoint_end)."""


class RankGroup(Protocol):
    """Process group of torch, of which the rank and the size are read."""

    def rank(self) -> int:
        """Return the rank of this process in the group."""

    def size(self) -> int:
        """Return the number of ranks."""


class ModelGroups(Protocol):
    """Process groups that metrics read; Megatron's ProcessGroupCollection has them. Norms read further fields."""

    @property
    def pp(self) -> RankGroup:
        """Pipeline stages."""

    @property
    def dp(self) -> RankGroup:
        """Data-parallel ranks, without context parallelism."""

    @property
    def dp_cp(self) -> RankGroup:
        """Ranks with the same weights: data and context parallelism."""
