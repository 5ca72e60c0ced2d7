"""Construction of Megatron's rerun state machine, which repeats suspicious steps. Imports torch and megatron."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from mb_loop import require_finite_loss
from mb_loop.mcore import MegatronRerunMachine
from mb_resilience import RerunStateMachineConfig


def build_reruns(section: RerunStateMachineConfig) -> MegatronRerunMachine | None:
    """Return the rerun state machine; None if no setting needs it. Call it before a checkpoint is loaded."""
    wanted = section.rerun_mode != "disabled" or section.check_for_spiky_loss
    return MegatronRerunMachine(section) if wanted else None


def loss_inspection(
    section: RerunStateMachineConfig, reruns: MegatronRerunMachine | None
) -> Callable[[Tensor], object] | None:
    """Return the inspection of each microbatch's loss; None: losses are not inspected."""
    if reruns is not None:
        return reruns.inspect_loss
    return require_finite_loss if section.check_for_nan_in_loss else None


def evaluating(reruns: MegatronRerunMachine | None) -> AbstractContextManager[None]:
    """Return a context manager in which no step is rerun."""
    return nullcontext() if reruns is None else reruns.paused()
