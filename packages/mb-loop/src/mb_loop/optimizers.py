"""One way to use Megatron's optimizer and scheduler, and torch's."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Optimizer(Protocol):
    """What Megatron's and torch's optimizers share."""

    @property
    def param_groups(self) -> Sequence[Mapping[str, Any]]:
        """Parameter groups, each with its `params` and `lr`."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> Any:
        """Update the weights. Megatron's answers (done, gradient norm, zeros in the gradient), torch's None."""


class Scheduler(Protocol):
    """A learning rate schedule: Megatron's advances by samples (`increment`), torch's by steps."""

    @property
    def step(self) -> Callable[..., Any]:
        """Advance the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerUpdate:
    """What an optimizer step did."""

    successful: bool = True
    grad_norm: Any = None
    num_zeros_in_grad: Any = None


def step_optimizer(optimizer: Optimizer) -> OptimizerUpdate:
    """Take one optimizer step. A tuple is Megatron's answer; anything else is torch's, which always updates."""
    answer = optimizer.step()
    if isinstance(answer, tuple):
        successful, grad_norm, zeros = answer
        return OptimizerUpdate(successful=bool(successful), grad_norm=grad_norm, num_zeros_in_grad=zeros)
    return OptimizerUpdate()


def learning_rate(optimizer: Optimizer) -> Any:
    """Return the rate of the last group on the common schedule, one with parameters if there is one; else None.

    A rate kept in a tensor is returned as it is: no synchronisation.
    """
    groups = optimizer.param_groups
    common = [group for group in groups if not _is_decoupled(group)]
    return _rate(common or [group for group in groups if not group.get("is_decoupled_lr", False)])


def decoupled_learning_rate(optimizer: Optimizer) -> Any:
    """Return the same of the groups with a schedule of their own (embedding and output layer may have one)."""
    return _rate([group for group in optimizer.param_groups if _is_decoupled(group)])


def _is_decoupled(group: Mapping[str, Any]) -> bool:
    """Read Megatron's marks; 0.19 sets `default_config` only, and torch's groups have neither."""
    return group.get("is_decoupled_lr", False) or not group.get("default_config", True)


def _rate(groups: Sequence[Mapping[str, Any]]) -> Any:
    own = [group for group in groups if group["params"]]  # of shards, a rank may have none
    return (own or groups)[-1]["lr"] if groups else None


def scheduler_step(scheduler: Scheduler | None) -> Callable[[int], object]:
    """Return a function that advances the scheduler by a number of samples; torch's counts steps and ignores it."""
    if scheduler is None:
        return lambda samples: None
    step = scheduler.step
    if "increment" in inspect.signature(step).parameters:
        return lambda samples: step(increment=samples)
    return lambda samples: step()
