"""Faults of context parallelism."""

import functools
import inspect
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings


def mean_over_the_sequence(calculate: Function) -> Function:
    """Divide the loss of a microbatch by its tokens on all context-parallel ranks, not by those of each rank.

    Each rank then has a part of the mean, and DistributedDataParallel divides the sum of the parts by the ranks, so a
    part is multiplied by them. One reduction of a number for each microbatch, on the last stage, without
    `calculate_per_token_loss` only.
    """
    signature = inspect.signature(calculate)

    @functools.wraps(calculate)
    def patched(*inputs: Any, **options: Any) -> Any:
        call = signature.bind(*inputs, **options)
        call.apply_defaults()
        given = call.arguments
        if (
            given["loss_func"] is not None
            and given["is_last_stage"] is not False
            and not given["config"].calculate_per_token_loss
            and not given["collect_non_loss_data"]
        ):
            given["loss_func"] = _loss_of_sequence(given["loss_func"], given["model"])
        return calculate(*call.args, **call.kwargs)

    return patched


def _loss_of_sequence(loss_func: Function, model: Any) -> Function:
    """Return the loss function with the number of tokens of all context-parallel ranks, and a loss to be averaged."""

    def of_sequence(output: Any) -> Any:
        import torch
        from megatron.core import parallel_state

        outputs = loss_func(output)
        owner = model
        while owner is not None and not hasattr(owner, "pg_collection"):
            owner = getattr(owner, "module", None)
        group = getattr(getattr(owner, "pg_collection", None), "cp", None)
        if group is None:
            group = parallel_state.get_context_parallel_group(check_initialized=False)
        if group is None or group.size() == 1 or len(outputs) != 3:
            return outputs
        loss, tokens, logged = outputs
        tokens = tokens.clone()
        torch.distributed.all_reduce(tokens, group=group)
        return loss * group.size(), tokens, logged

    return of_sequence


def _drops_out_with_context_parallelism(settings: Settings) -> bool:
    dropout = (settings.hidden_dropout or 0) > 0 or (settings.attention_dropout or 0) > 0
    return dropout and (settings.context_parallel_size or 1) > 1


FAULTS = (
    Fault(
        id="context-parallel-mean",
        effect="wrong number",
        summary="With context parallelism and loss masks, without calculate_per_token_loss, the loss of a microbatch "
        "is a mean of the means of its ranks.",
        shows="Silent; the logged loss is right. With all tokens of the loss on one of two ranks the gradient is half.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/7513",
        test="packages/mb-guard/tests/test_context_parallel.py::test_a_mask_on_one_rank",
        patches=(
            Patch(
                wrap=mean_over_the_sequence,
                module="megatron.core.pipeline_parallel.schedules",
                target="forward_step_calc_loss",
                sources=("21c1cab8a4c55482",),
            ),
        ),
    ),
    Fault(
        id="context-parallel-dropout",
        effect="wrong number",
        summary="All context-parallel ranks draw the same dropout masks, so the parts of a sequence have equal masks.",
        shows="Silent: the masks of two ranks agree in all places, independent ones with p = 0.5 in half of them.",
        action="warn",
        report="https://github.com/NVIDIA/Megatron-LM/issues/4828",
        test="packages/mb-guard/tests/test_context_parallel.py::test_ranks_draw_the_same_dropout_masks",
        met=_drops_out_with_context_parallelism,
        advice="Set hidden_dropout=0 and attention_dropout=0, or context_parallel_size=1.",
    ),
)
