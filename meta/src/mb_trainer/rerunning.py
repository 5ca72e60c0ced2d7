"""Megatron's machine that runs a step again whose loss is suspicious. Imports torch and megatron."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from mb_loop import require_finite_loss
from mb_loop.mcore import MegatronRerunMachine
from mb_resilience import RerunStateMachineConfig


def build_reruns(section: RerunStateMachineConfig) -> MegatronRerunMachine | None:
    """Return the machine; None where nothing is asked that needs it. Before a checkpoint is loaded."""
    wanted = section.rerun_mode != "disabled" or section.check_for_spiky_loss
    return MegatronRerunMachine(section) if wanted else None


def loss_inspection(
    section: RerunStateMachineConfig, reruns: MegatronRerunMachine | None
) -> Callable[[Tensor], object] | None:
    """Return what looks at the loss of each microbatch; None: nobody does."""
    if reruns is not None:
        return reruns.inspect_loss
    return require_finite_loss if section.check_for_nan_in_loss else None


def evaluating(reruns: MegatronRerunMachine | None) -> AbstractContextManager[None]:
    """Return a block in which no step is run again."""
    return nullcontext() if reruns is None else reruns.paused()
