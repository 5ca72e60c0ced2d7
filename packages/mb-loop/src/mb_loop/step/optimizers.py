"""Optimizers and schedulers of Megatron and torch behind one interface; agreement on an update. Imports torch."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.distributed import ProcessGroup

from mb_loop.collectives import max_in_group_
from mb_loop.maintenance.replicas import is_expert
from mb_loop.settings import TrainSettings


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


UpdateSync = Callable[[OptimizerUpdate], OptimizerUpdate]


@runtime_checkable
class ModelParallelGroup(Protocol):
    """Process group collection with a model-parallel group, such as Megatron's ProcessGroupCollection."""

    @property
    def mp(self) -> ProcessGroup:
        """Ranks that share one replica of the model."""


def update_sync(optimizer: Optimizer, groups: object, *, settings: TrainSettings) -> UpdateSync | None:
    """Return a function that makes optimizer results equal on all ranks of `groups.mp`; None if they always are.

    Collective over `groups.mp`.

    Megatron's optimizer already agrees on success and norm if every rank trains weights of the same kinds. Results can
    differ only if a rank trains no dense or no expert weights while another rank does (frozen parts). One collective
    detects this here; only in that case each step has one more collective and one device synchronisation.
    """
    needs_sync = settings.check_optimizer_step_success or not settings.skip_sync_grad_norm_across_mp
    if not (needs_sync and isinstance(groups, ModelParallelGroup)):
        return None
    group = groups.mp
    if group.size() == 1 or _same_kinds_on_all_ranks(optimizer, group):
        return None

    def synchronize(update: OptimizerUpdate) -> OptimizerUpdate:
        # -inf: no value. Neither a norm nor a number of zeros is negative.
        local_update = [
            not update.successful,
            *(
                -math.inf if value is None else float(value)
                for value in (update.grad_norm, update.num_zeros_in_grad)
            ),
        ]
        # float64 holds counts of zeros exactly; float32 does so up to 2**24 only.
        values = torch.tensor(local_update, dtype=torch.float64, device=_device(group))
        max_in_group_(values, group)
        failed, *numbers = values.tolist()
        grad_norm, zeros = (None if number == -math.inf else number for number in numbers)
        return OptimizerUpdate(
            successful=not failed if settings.check_optimizer_step_success else update.successful,
            grad_norm=update.grad_norm if settings.skip_sync_grad_norm_across_mp else grad_norm,
            num_zeros_in_grad=zeros,
        )

    return synchronize


def _same_kinds_on_all_ranks(optimizer: Optimizer, group: ProcessGroup) -> bool:
    kinds = {
        "expert" if is_expert(weight) else "dense"
        for part in optimizer.param_groups
        for weight in part["params"]
    }
    # One all-reduce finds the largest and the smallest value: the smallest is the largest of the negated ones.
    has_kinds = [int("dense" in kinds), int("expert" in kinds)]
    values = torch.tensor([*has_kinds, *(-flag for flag in has_kinds)], device=_device(group))
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX, group=group)
    most_dense, most_expert, least_dense, least_expert = values.tolist()
    return bool(most_dense == -least_dense and most_expert == -least_expert)


def _device(group: ProcessGroup) -> str:
    return "cuda" if torch.distributed.get_backend(group) == "nccl" else "cpu"
