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


def learning_rates(optimizer: Optimizer) -> tuple[Any, Any]:
    """Return the learning rates of the groups on the common schedule and of those on a separate one; None: no group.

    Each is the rate of the last group, preferably one with parameters: with sharding, a rank may have none. Embedding
    and output layer may have a separate schedule (`decoupled_lr`). A rate in a tensor is returned as a tensor, without
    synchronisation.
    """
    common, decoupled, unflagged = None, None, None
    # groups with parameters last, so that they win
    for group in sorted(optimizer.param_groups, key=lambda group: bool(group["params"])):
        flagged = group.get("is_decoupled_lr", False)
        if flagged or not group.get("default_config", True):  # Megatron 0.19 sets only `default_config`
            decoupled = group
        else:
            common = group
        if not flagged:
            unflagged = group
    chosen = unflagged if common is None else common
    return None if chosen is None else chosen["lr"], None if decoupled is None else decoupled["lr"]


def scheduler_step(scheduler: Scheduler | None) -> Callable[[int], object]:
    """Return a function that advances the scheduler by a number of samples; torch's schedulers advance by one step."""
    if scheduler is None:
        return lambda samples: None
    step = scheduler.step
    if "increment" in inspect.signature(step).parameters:
        return lambda samples: step(increment=samples)
    return lambda samples: step()
