"""Rules for the packing of fine-tuning data, ahead of the run or in each micro-batch. Standard library only.

The rules do not apply to a dataset that lacks their first field.
"""

from collections.abc import Mapping
from typing import Any

from mb_data.finetuning.rules import get_spec
from mb_schema.rule_kinds import SET, among, excludes, requires, rule
from mb_schema.rules import Rule

_PACKS, _IN_BATCH = "dataset.packed_sequence_specs", "dataset.pack_sequences_in_batch"

_NOT_PACKED: Mapping[str, tuple[Any, ...]] = {
    "model.hybrid_layer_pattern": (),
    "model.decoder_seq_length": (),
    "model.image_token_id": (),
    "model.softmax_type": ("vanilla",),
}
"""Fields of models whose layers do not receive the boundaries of samples -> values that are allowed besides null."""

_FIXED_LENGTHS: Mapping[str, tuple[Any, ...]] = {
    "model.cuda_graph_impl": ("none",),
    "model.tp_comm_overlap": (False,),
}
"""Fields that require micro-batches of one length -> values that are allowed besides null."""


def _cannot_be_packed(packs: Any, *values: Any) -> str | None:
    return _first_set(_NOT_PACKED, values) if packs is not None else None


def _cannot_differ(in_batch: Any, *values: Any) -> str | None:
    return _first_set({**_NOT_PACKED, **_FIXED_LENGTHS}, values) if in_batch else None


def _first_set(allowed: Mapping[str, tuple[Any, ...]], values: tuple[Any, ...]) -> str | None:
    requested = [
        f"{path}={value}"
        for (path, fine), value in zip(allowed.items(), values, strict=True)
        if value is not None and value not in fine
    ]
    return f"is set with {requested[0]}" if requested else None


def _local_attention(packed: Any, layers: Any, cpu: Any) -> str | None:
    wrong = packed not in (None, False) and cpu is False and layers == "local"
    return "is set with transformer_impl=local on a GPU" if wrong else None


def _gathered_experts(in_batch: Any, dispatcher: Any, ranks: Any) -> str | None:
    if not in_batch or dispatcher != "allgather" or (ranks or 1) == 1:
        return None
    return f"is true with moe_token_dispatcher_type=allgather and expert_model_parallel_size={ranks}"


def _one_sample(in_batch: Any, micro: Any) -> str | None:
    return "is true with train.micro_batch_size=1" if in_batch and micro == 1 else None


_BOUNDARIES = (
    "operations that mix tokens need the boundaries of the samples, and only those of GPT models receive them"
)
_LOCAL = "Megatron Core's local attention does not support packed sequences"

_PACK_FIELDS = ("packed_sequence_size", "max_single_sequence_length", "pad_seq_to_mult")


def _wrong_pack_sizes(specs: object) -> str | None:
    if specs is None:
        return None
    size, longest, multiple = (get_spec(specs, name) for name in _PACK_FIELDS)
    if multiple is not None and multiple < 1:
        return f"pad_seq_to_mult={multiple} is below 1"
    if longest is None or size is None or 0 < longest <= size:
        return None
    return f"max_single_sequence_length={longest} is not from 1 to packed_sequence_size={size}"


def _microbatch_of_packs(specs: object, micro: int | None, batch: int | None) -> str | None:
    if specs is None:
        return None
    size = get_spec(specs, "packed_sequence_size")
    if size is not None and size <= 0:
        return f"packed_sequence_size={size} is not positive"
    if micro is None or micro == 1:
        return None
    same = f"global_batch_size={batch // micro}, " if batch is not None else ""
    packs = f" and packs of {size * micro} tokens" if size is not None else ""
    return f"each pack is a microbatch, but micro_batch_size={micro}: the equivalent is {same}micro_batch_size=1{packs}"


RULES: tuple[Rule, ...] = (
    rule(
        "D75",
        (_PACKS, *_NOT_PACKED),
        _cannot_be_packed,
        why=_BOUNDARIES,
        fix="Leave dataset.packed_sequence_specs unset, or set the other field to its default.",
        fails=({}, None, None, None, "learnable"),
        passes=({}, None, None, None, "vanilla"),
    ),
    requires(
        "D76",
        {_PACKS: SET},
        {"model.cuda_graph_impl": among(None, "none")},
        why="a captured graph would keep the sample boundaries of the pack that it was captured with",
        fix="Set model.cuda_graph_impl=none.",
        fails=({"packed_sequence_size": 4096}, "local"),
        passes=({"packed_sequence_size": 4096}, "none"),
    ),
    rule(
        "D81",
        (_PACKS, "model.transformer_impl", "facts.cpu"),
        _local_attention,
        why=_LOCAL,
        fix="Use Transformer Engine (model.transformer_impl=transformer_engine), or leave "
        "dataset.packed_sequence_specs unset.",
        fails=({}, "local", False),
        passes=({}, "local", True),
    ),
    excludes(
        "V102",
        {_IN_BATCH: True, _PACKS: SET},
        why="samples are packed once",
        fix="Set one of the two.",
        fails=(True, {"packed_sequence_size": 4096}),
        passes=(True, None),
    ),
    rule(
        "D107",
        (_IN_BATCH, *_NOT_PACKED, *_FIXED_LENGTHS),
        _cannot_differ,
        why=f"{_BOUNDARIES}; the length of a micro-batch differs from step to step",
        fix="Set dataset.pack_sequences_in_batch=false, or the other field to its default.",
        fails=(True, None, None, None, None, "local", None),
        passes=(True, None, None, None, None, "none", None),
    ),
    rule(
        "D108",
        (_IN_BATCH, "model.moe_token_dispatcher_type", "model.expert_model_parallel_size"),
        _gathered_experts,
        why="that dispatcher gathers equal numbers of tokens from all ranks",
        fix="Set model.moe_token_dispatcher_type=alltoall.",
        fails=(True, "allgather", 2),
        passes=(True, "alltoall", 2),
    ),
    rule(
        "D109",
        (_IN_BATCH, "model.transformer_impl", "facts.cpu"),
        _local_attention,
        why=_LOCAL,
        fix="Use Transformer Engine (model.transformer_impl=transformer_engine), or set "
        "dataset.pack_sequences_in_batch=false.",
        fails=(True, "local", False),
        passes=(True, "local", True),
    ),
    rule(
        "D110",
        (_IN_BATCH, "train.micro_batch_size"),
        _one_sample,
        why="the samples of a micro-batch are concatenated, and there is only one",
        fix="Set a larger train.micro_batch_size, or dataset.pack_sequences_in_batch=false.",
        fails=(True, 1),
        passes=(True, 4),
    ),
    rule(
        "V048",
        _PACKS,
        _wrong_pack_sizes,
        why="a pack is filled with sequences of at most its size",
        fix="Correct this number.",
        fails=({"packed_sequence_size": 4096, "max_single_sequence_length": 8192},),
        passes=({"packed_sequence_size": 4096, "pad_seq_to_mult": 2},),
    ),
    rule(
        "V139",
        (_PACKS, "train.micro_batch_size", "train.global_batch_size"),
        _microbatch_of_packs,
        why="a pack is one row of tokens with the start positions of its sequences",
        fix="Set train.micro_batch_size=1 and a positive packed_sequence_size.",
        fails=({"packed_sequence_size": 4096}, 4, 128),
        passes=({"packed_sequence_size": 16384}, 1, 32),
    ),
)
"""All rules for packed samples."""
