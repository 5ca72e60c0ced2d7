"""Tokens of a step over all replicas, counted before its first backward pass.

With `calculate_per_token_loss` Megatron divides all gradients by the tokens in the loss, N, at the end of the step.
Losses that are means over other tokens must be multiplied by N divided by the number of those tokens. Both numbers are
sums over the step and all replicas, but the backward pass of the first microbatch needs them. So the last pipeline
stage reads the microbatches of the step in advance, as Megatron's full-iteration graphs do. N is taken from the loss
masks; a loss function that returns another number is an error, because it is known after the last forward pass only.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mb_guard.errors import TokenCountError
from mb_guard.fault import Function, Patch


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Numbers of tokens, means over the microbatches of a step and all replicas: tensors on the device.

    NaN: unknown from the data.
    """

    in_loss: Any
    """Tokens in the loss, `[depths + 1]`; those of depth k have a label in the loss k tokens ahead."""
    routed: tuple[Any, Any]
    """Tokens of a router that are not padding, in the main model and in multi-token prediction (mean over depths)."""
    scale: tuple[Any, Any]
    """Tokens in the loss for each token of a router; 1 if unknown."""
    microbatches: int
    """Microbatches of the step, of all replicas."""

    @classmethod
    def of(cls, in_loss: Any, valid: Any, *, microbatches: int) -> "StepTokens":
        """Return the numbers, `valid` being the tokens that are not padding by depth: those with a token ahead."""
        routed = valid[0], valid[1:].mean()
        scale = (in_loss[0] / routed[0]).nan_to_num(nan=1.0), (in_loss[0] / routed[1]).nan_to_num(nan=1.0)
        return cls(in_loss, routed, scale, microbatches)


# Routers and the loss of multi-token prediction are called through the layers of a model, which pass no state.
_steps: list[StepTokens] = []


def current_step() -> StepTokens | None:
    """Return the numbers of the step that is running; None outside of a schedule, and where they are not needed."""
    return _steps[-1] if _steps else None


def count_tokens_first(schedule: Function) -> Function:
    """Count the tokens of a training step before the schedule runs it, if the model has losses that need them.

    The last pipeline stage takes the microbatches of the step from its iterator, and gives them to the schedule. A
    microbatch is a mapping with `loss_mask` [B, S], with `padding_mask` [B, S] (True: padding) if it has padding, and
    with `cu_seqlens` [1, sequences + 1] if it is packed.
    """
    if getattr(schedule, "counts_tokens_first", False):  # for another fault
        return schedule

    @functools.wraps(schedule)
    def patched(**arguments: Any) -> Any:
        depths = None if arguments.get("forward_only") else _depths(arguments["model"])
        counted = None if depths is None else _read_step(arguments, depths)
        if counted is None:
            return schedule(**arguments)
        _steps.append(counted)
        try:
            with _same_divisor(arguments, counted):
                return schedule(**arguments)
        finally:
            _steps.pop()

    patched.counts_tokens_first = True  # type: ignore[attr-defined]
    return patched


_divisors: list[tuple[Any, Any]] = []
"""Of the last step, not compared yet: the number by which Megatron has divided, and tokens in the loss of all replicas,
`[2]` on the host, and the event after which they are there (None: at once)."""


@contextmanager
def _same_divisor(arguments: Mapping[str, Any], counted: StepTokens) -> Iterator[None]:
    """Reject a step whose gradients Megatron divides by another number than the tokens of the loss masks.

    On a CPU the step itself; on a device at the start of the next step, so that the host waits neither for this one nor
    for the optimizer.
    """
    import torch

    config = _config_of(arguments["model"])
    finalize, tokens = config.finalize_model_grads_func, counted.in_loss[0] * counted.microbatches
    if finalize is None or (tokens.is_cuda and torch.cuda.is_current_stream_capturing()):
        yield
        return
    _compare_divisors()

    def observed(chunks: Any, num_tokens: Any = None, *inputs: Any, **options: Any) -> None:
        finalize(chunks, num_tokens, *inputs, **options)
        if num_tokens is not None:  # Megatron has added those of all ranks, in place
            _divisors[:] = [_on_host(torch.stack([num_tokens.double(), tokens.double()]))]

    config.finalize_model_grads_func = observed
    try:
        yield
    finally:
        config.finalize_model_grads_func = finalize
    if not tokens.is_cuda:
        _compare_divisors()


def _on_host(numbers: Any) -> tuple[Any, Any]:
    """Return a copy on the host, and the event after which it is complete; None without a device."""
    import torch

    if not numbers.is_cuda:
        return numbers, None
    copy = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types
    event.record()
    return copy, event


def _compare_divisors() -> None:
    if not _divisors:
        return
    numbers, event = _divisors.pop()
    if event is not None:
        event.synchronize()
    divisor, tokens = numbers.tolist()
    if abs(divisor - tokens) > 1 + 1e-6 * tokens:
        raise TokenCountError(
            f"loss function: has returned {divisor:,.0f} tokens in a step of which the loss masks hold {tokens:,.0f}, "
            "because the losses of experts and of multi-token prediction, which the model adds, are scaled by the "
            "loss masks before the loss function runs, and would be trained with other coefficients. Return the sum "
            "of the loss mask as the number of tokens, set model.calculate_per_token_loss=false, or remove these "
            "losses (moe_aux_loss_coeff, moe_z_loss_coeff, mtp_num_layers)."
        )


def _config_of(model: Any) -> Any:
    """Return Megatron's configuration of a chunk, or of a list of chunks."""
    from megatron.core.utils import get_model_config

    return get_model_config(model[0] if isinstance(model, list) else model)


def _depths(model: Any) -> int | None:
    """Return the depths of multi-token prediction of a model whose losses need the numbers; None for other models."""
    config = _config_of(model)
    depths = getattr(config, "mtp_num_layers", None) or 0
    coefficients = getattr(config, "moe_aux_loss_coeff", None)
    balanced = getattr(config, "num_moe_experts", None) and (
        getattr(config, "moe_z_loss_coeff", None)
        or (any(coefficients) if isinstance(coefficients, Sequence) else coefficients)
    )
    return depths if config.calculate_per_token_loss and (depths or balanced) else None


def _read_step(arguments: dict[str, Any], depths: int) -> StepTokens | None:
    """Return the numbers of a step, and replace the iterator of the last stage by one over what was read. Collective.

    Ranks that read the same microbatches count them several times, the number of microbatches included.
    """
    import torch
    from megatron.core.pipeline_parallel.utils import is_pp_last_stage
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = arguments.get("pg_collection")
    if groups is None:
        groups = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "pp", "dp_cp"])
    elif not all(hasattr(groups, name) for name in ("tp", "pp", "dp_cp")):
        return None  # modules on different ranks
    number, iterators = arguments["num_microbatches"], arguments["data_iterator"]
    chunks = list(iterators) if isinstance(iterators, list) else [iterators]
    sums = torch.zeros(3, depths + 1, dtype=torch.float64, device=torch.cuda.current_device())
    if is_pp_last_stage(groups.pp) and chunks[-1] is not None:
        step = [next(chunks[-1]) for _ in range(number)]
        chunks[-1] = iter(step)
        arguments["data_iterator"] = chunks if isinstance(iterators, list) else chunks[0]
        # Each microbatch is counted where it is, on the host or the device, and copied once.
        counted = torch.stack([_counts(microbatch, depths) for microbatch in step]).sum(0)
        sums[:2], sums[2] = counted.to(sums.device, non_blocking=True), number
    for group in (groups.tp, getattr(groups, "dp_cp_gtp_remat", None) or groups.dp_cp, groups.pp):
        if group is not None and group.size() > 1:
            torch.distributed.all_reduce(sums, group=group)
    # Megatron divides a step without any token in the loss by 1.
    means = (sums[:2] / sums[2]).clamp(min=1 / (number * groups.dp_cp.size())).float()
    replicas = groups.dp_cp.size() // _config_of(arguments["model"]).context_parallel_size
    return StepTokens.of(*means, microbatches=number * replicas)


def _counts(microbatch: Any, depths: int) -> Any:
    """Return the tokens in the loss and those that are not padding, `[2, depths + 1]`, of a complete microbatch."""
    import torch

    loss_mask = microbatch.get("loss_mask") if isinstance(microbatch, Mapping) else None
    if loss_mask is None:
        return torch.full((2, depths + 1), torch.nan, dtype=torch.float64)
    masks = [loss_mask]
    if (padding := microbatch.get("padding_mask")) is not None:
        masks.append(~padding.bool())
    counts = torch.full(
        (2, depths + 1), float(loss_mask.numel()), dtype=torch.float64, device=loss_mask.device
    )
    position: Any = None if depths == 0 else _positions(microbatch, loss_mask)
    for row, mask in enumerate(masks):
        counts[row, 0] = mask.sum()
        for depth in range(1, depths + 1):
            counts[row, depth] = (mask * (position >= depth)).sum()
    return counts


def _positions(microbatch: Mapping[str, Any], loss_mask: Any) -> Any:
    """Return the position of each token in its sequence, `[1, S]`."""
    import torch

    position = torch.arange(loss_mask.shape[-1], device=loss_mask.device)[None]
    if (boundaries := microbatch.get("cu_seqlens")) is None:
        return position
    starts = boundaries.reshape(-1).to(loss_mask.device)
    return position - starts[torch.searchsorted(starts, position, right=True) - 1]


_SCHEDULES = {
    "forward_backward_no_pipelining": "06a0bda080db4f54",
    "forward_backward_pipelining_without_interleaving": "74ec926beffbda33",
    "forward_backward_pipelining_with_interleaving": "6a63a0fbee6eed70",
}

COUNT_TOKENS_FIRST = tuple(
    Patch(
        wrap=count_tokens_first,
        module="megatron.core.pipeline_parallel.schedules",
        target=target,
        sources=(source,),
    )
    for target, source in _SCHEDULES.items()
)
"""Patches of all schedules, for each fault that needs `current_step`."""
