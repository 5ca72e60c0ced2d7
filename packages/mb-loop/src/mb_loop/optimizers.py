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
class Update:
    """What an optimizer step did."""

    done: bool = True
    grad_norm: Any = None
    num_zeros_in_grad: Any = None


def update(optimizer: Optimizer) -> Update:
    """Take one optimizer step. A tuple is Megatron's answer; anything else is torch's, which always updates."""
    answer = optimizer.step()
    if isinstance(answer, tuple):
        done, grad_norm, zeros = answer
        return Update(done=bool(done), grad_norm=grad_norm, num_zeros_in_grad=zeros)
    return Update()


def learning_rate(optimizer: Optimizer) -> Any:
    """Return the rate of the last group that has parameters and is not decoupled (embeddings may be); else None.

    A rate kept in a tensor is returned as it is: no synchronisation.
    """
    for group in reversed(optimizer.param_groups):
        if group["params"] and not group.get("is_decoupled_lr", False):
            return group["lr"]
    return None


def scheduler_step(scheduler: Scheduler | None) -> Callable[[int], object]:
    """Return a function that advances the scheduler by a number of samples; torch's counts steps and ignores it."""
    if scheduler is None:
        return lambda samples: None
    step = scheduler.step
    if "increment" in inspect.signature(step).parameters:
        return lambda samples: step(increment=samples)
    return lambda samples: step()
