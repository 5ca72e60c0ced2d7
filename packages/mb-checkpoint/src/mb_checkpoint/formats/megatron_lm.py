"""Arguments in Megatron-LM's checkpoints, which hold the counters that `train_state.pt` holds in others."""

from collections.abc import Mapping
from typing import Any

from mb_checkpoint.errors import TrainStateError
from mb_checkpoint.state.train_state import EXACT_FLOPS, FLOPS

ARGUMENTS = "args"
"""Entry with the arguments, an `argparse.Namespace`."""
COUNTERS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
"""Counters of a run that are arguments in Megatron-LM, under the same names."""
PLAIN = {bool, int, float, str, type(None)}
"""Types of the arguments that are stored, besides lists of them: no reader needs code of another package."""


def counters_of(common: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the counters of a checkpoint that Megatron-LM wrote, under the names of `train_state.pt`.

    Raises:
        TrainStateError: It lacks the arguments or the step; the message names `source`.
    """
    arguments, step = common.get(ARGUMENTS), common.get("iteration")
    if arguments is None or step is None:
        problem = "holds no counters: neither train_state.pt nor the arguments of Megatron-LM"
        raise TrainStateError(
            f"{source}: {problem}. A run cannot be resumed from it. Start from its weights with "
            "checkpoint.pretrained_checkpoint.",
            problem=problem,
        )
    # the last three are set again when the data is opened
    return {**stored_counters(common), "do_train": True, "do_valid": False, "do_test": False}


def stored_counters(common: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters in a state that holds arguments."""
    arguments = common[ARGUMENTS]
    return {
        "step": int(common.get("iteration", 0)),
        **{name: int(getattr(arguments, name, 0) or 0) for name in COUNTERS},
        FLOPS: int(common.get(EXACT_FLOPS, 0)),
    }


def layout_of(common: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the parallel sizes of the run that wrote a checkpoint, by its arguments; None without arguments."""
    arguments = common.get(ARGUMENTS)
    if arguments is None:
        return None
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    sizes = {name: int(getattr(arguments, name, 1) or 1) for name in names}
    return {
        **sizes,
        "model_chunks": int(getattr(arguments, "virtual_pipeline_model_parallel_size", None) or 1),
    }
