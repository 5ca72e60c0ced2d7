"""Common interface to the optimizers and schedulers of Megatron and torch."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Optimizer(Protocol):
    """Interface that Megatron's and torch's optimizers share."""

    @property
    def param_groups(self) -> Sequence[Mapping[str, Any]]:
        """Parameter groups, each with its `params` and `lr`."""

    def zero_grad(self) -> None:
        """Zero the gradients."""

    def step(self) -> Any:
        """Update the weights. Megatron returns (successful, gradient norm, zeros in gradient), torch None."""


class Scheduler(Protocol):
    """Learning rate scheduler. Megatron's advances by samples (`increment`), torch's by steps."""

    @property
    def step(self) -> Callable[..., Any]:
        """Advance the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerUpdate:
    """Result of an optimizer step."""

    successful: bool = True
    grad_norm: Any = None
    num_zeros_in_grad: Any = None


def step_optimizer(optimizer: Optimizer) -> OptimizerUpdate:
    """Run one optimizer step. Megatron returns a tuple; torch returns anything else and always updates."""
    returned = optimizer.step()
    if isinstance(returned, tuple):
        successful, grad_norm, zeros = returned
        return OptimizerUpdate(successful=bool(successful), grad_norm=grad_norm, num_zeros_in_grad=zeros)
    return OptimizerUpdate()


def learning_rate(optimizer: Optimizer) -> Any:
    """Return the learning rate of the last group on the common schedule, preferably one with parameters; else None.

    A rate that is stored in a tensor is returned as a tensor, without synchronisation.
    """
    groups = optimizer.param_groups
    common = [group for group in groups if not _is_decoupled(group)]
    return _rate(common or [group for group in groups if not group.get("is_decoupled_lr", False)])


def decoupled_learning_rate(optimizer: Optimizer) -> Any:
    """Return the learning rate of groups with a separate schedule, such as embedding and output layer; else None."""
    return _rate([group for group in optimizer.param_groups if _is_decoupled(group)])


def _is_decoupled(group: Mapping[str, Any]) -> bool:
    """Read Megatron's flags. Megatron 0.19 sets only `default_config`; torch's groups have neither flag."""
    return group.get("is_decoupled_lr", False) or not group.get("default_config", True)


def _rate(groups: Sequence[Mapping[str, Any]]) -> Any:
    own = [group for group in groups if group["params"]]  # with sharding, a rank may have none
    return (own or groups)[-1]["lr"] if groups else None


def scheduler_step(scheduler: Scheduler | None) -> Callable[[int], object]:
    """Return a function that advances the scheduler by a number of samples; torch's schedulers advance by one step."""
    if scheduler is None:
        return lambda samples: None
    step = scheduler.step
    if "increment" in inspect.signature(step).parameters:
        return lambda samples: step(increment=samples)
    return lambda samples: step()
