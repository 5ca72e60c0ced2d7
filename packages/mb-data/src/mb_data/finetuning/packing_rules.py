"""Rules for the packing of fine-tuning data, ahead of the run or in each micro-batch. Standard library only.

The rules do not apply to a dataset that lacks their first field.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mb_data.finetuning.rules import get_spec
from mb_schema.rule_kinds import SET, among, excludes, requires, rule, section_rule
from mb_schema.rules import Rule

dataset_rule = partial(section_rule, "dataset")

_PACKS, _IN_BATCH = "dataset.packed_sequence_specs", "dataset.pack_sequences_in_batch"

_NOT_PACKED: Mapping[str, tuple[Any, ...]] = {
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


def _hybrid_layers(packed, model__hybrid_layer_pattern, cp):
    pattern = model__hybrid_layer_pattern
    if packed in (None, False) or pattern is None:
        return None
    if "G" in pattern:
        return f"is set with gated-delta layers (hybrid_layer_pattern={pattern})"
    return (
        f"is set with hybrid_layer_pattern={pattern} and context_parallel_size={cp}"
        if (cp or 1) > 1
        else None
    )


def _local_attention(packed, model__transformer_impl, *, cpu):
    wrong = packed not in (None, False) and cpu is False and model__transformer_impl == "local"
    return "is set with transformer_impl=local on a GPU" if wrong else None


@dataset_rule(
    "D108",
    why="that dispatcher gathers equal numbers of tokens from all ranks",
    fix="Set model.moe_token_dispatcher_type=alltoall.",
    fails={"pack_sequences_in_batch": True, "model__moe_token_dispatcher_type": "allgather", "ep": 2},
    passes={"model__moe_token_dispatcher_type": "alltoall"},
)
def _gathered_experts(pack_sequences_in_batch, model__moe_token_dispatcher_type, ep):
    if not pack_sequences_in_batch or model__moe_token_dispatcher_type != "allgather" or (ep or 1) == 1:
        return None
    return f"is true with moe_token_dispatcher_type=allgather and expert_model_parallel_size={ep}"


@dataset_rule(
    "D110",
    why="the samples of a micro-batch are concatenated, and there is only one",
    fix="Set a larger train.micro_batch_size, or dataset.pack_sequences_in_batch=false.",
    fails={"pack_sequences_in_batch": True, "train__micro_batch_size": 1},
    passes={"train__micro_batch_size": 4},
)
def _one_sample(pack_sequences_in_batch, train__micro_batch_size):
    if pack_sequences_in_batch and train__micro_batch_size == 1:
        return "is true with train.micro_batch_size=1"
    return None


_BOUNDARIES = (
    "operations that mix tokens need the boundaries of the samples, and only those of GPT models and hybrids receive "
    "them"
)
_KERNELS = (
    "Megatron Core packs gated-delta layers, and hybrids under context parallelism, with kernels of a GPU that are not "
    "tested here against separate samples"
)
_LOCAL = "Megatron Core's local attention does not support packed sequences"

_PACK_FIELDS = ("packed_sequence_size", "max_single_sequence_length", "pad_seq_to_mult")


@dataset_rule(
    "V048",
    why="a pack is filled with sequences of at most its size",
    fix="Correct this number.",
    fails={"packed_sequence_specs": {"packed_sequence_size": 4096, "max_single_sequence_length": 8192}},
    passes={"packed_sequence_specs": {"packed_sequence_size": 4096, "pad_seq_to_mult": 2}},
)
def _wrong_pack_sizes(packed_sequence_specs):
    if packed_sequence_specs is None:
        return None
    size, longest, multiple = (get_spec(packed_sequence_specs, name) for name in _PACK_FIELDS)
    if multiple is not None and multiple < 1:
        return f"pad_seq_to_mult={multiple} is below 1"
    if longest is None or size is None or 0 < longest <= size:
        return None
    return f"max_single_sequence_length={longest} is not from 1 to packed_sequence_size={size}"


@dataset_rule(
    "V139",
    why="a pack is one row of tokens with the start positions of its sequences",
    fix="Set train.micro_batch_size=1 and a positive packed_sequence_size.",
    fails={
        "packed_sequence_specs": {"packed_sequence_size": 4096},
        "train__micro_batch_size": 4,
        "train__global_batch_size": 128,
    },
    passes={
        "packed_sequence_specs": {"packed_sequence_size": 16384},
        "train__micro_batch_size": 1,
        "train__global_batch_size": 32,
    },
)
def _microbatch_of_packs(packed_sequence_specs, train__micro_batch_size, train__global_batch_size):
    if packed_sequence_specs is None:
        return None
    size = get_spec(packed_sequence_specs, "packed_sequence_size")
    if size is not None and size <= 0:
        return f"packed_sequence_size={size} is not positive"
    if train__micro_batch_size is None or train__micro_batch_size == 1:
        return None
    same = (
        f"global_batch_size={train__global_batch_size // train__micro_batch_size}, "
        if train__global_batch_size is not None
        else ""
    )
    packs = f" and packs of {size * train__micro_batch_size} tokens" if size is not None else ""
    return (
        f"each pack is a microbatch, but micro_batch_size={train__micro_batch_size}: the equivalent is "
        f"{same}micro_batch_size=1{packs}"
    )


RULES: tuple[Rule, ...] = (
    rule(
        "D75",
        (_PACKS, *_NOT_PACKED),
        _cannot_be_packed,
        why=_BOUNDARIES,
        fix="Leave dataset.packed_sequence_specs unset, or set the other field to its default.",
        fails=({}, None, None, "learnable"),
        passes=({}, None, None, "vanilla"),
    ),
    *(
        dataset_rule(
            id,
            paths={"packed": path},
            why=_KERNELS,
            fix=f"Remove G from model.hybrid_layer_pattern, set model.context_parallel_size=1, or set {path}={off}.",
            fails={"packed": on, "model__hybrid_layer_pattern": "MG*-"},
            passes={"model__hybrid_layer_pattern": "M*-"},
        )(_hybrid_layers)
        for id, path, on, off in (("D122", _PACKS, {}, "null"), ("D123", _IN_BATCH, True, "false"))
    ),
    requires(
        "D76",
        {_PACKS: SET},
        {"model.cuda_graph_impl": among(None, "none")},
        why="a captured graph would keep the sample boundaries of the pack that it was captured with",
        fix="Set model.cuda_graph_impl=none.",
        fails={
            "dataset.packed_sequence_specs": {"packed_sequence_size": 4096},
            "model.cuda_graph_impl": "local",
        },
        passes={"model.cuda_graph_impl": "none"},
    ),
    dataset_rule(
        "D81",
        paths={"packed": "dataset.packed_sequence_specs"},
        why=_LOCAL,
        fix="Use Transformer Engine (model.transformer_impl=transformer_engine), or leave "
        "dataset.packed_sequence_specs unset.",
        fails={"packed": {}, "model__transformer_impl": "local", "cpu": False},
        passes={"cpu": True},
    )(_local_attention),
    excludes(
        "V102",
        {_IN_BATCH: True, _PACKS: SET},
        why="samples are packed once",
        fix="Set one of the two.",
        fails={"dataset.packed_sequence_specs": {"packed_sequence_size": 4096}},
    ),
    rule(
        "D107",
        (_IN_BATCH, *_NOT_PACKED, *_FIXED_LENGTHS),
        _cannot_differ,
        why=f"{_BOUNDARIES}; the length of a micro-batch differs from step to step",
        fix="Set dataset.pack_sequences_in_batch=false, or the other field to its default.",
        fails=(True, None, None, None, "local", None),
        passes=(True, None, None, None, "none", None),
    ),
    _gathered_experts,
    dataset_rule(
        "D109",
        paths={"packed": "dataset.pack_sequences_in_batch"},
        why=_LOCAL,
        fix="Use Transformer Engine (model.transformer_impl=transformer_engine), or set "
        "dataset.pack_sequences_in_batch=false.",
        fails={"packed": True, "model__transformer_impl": "local", "cpu": False},
        passes={"cpu": True},
    )(_local_attention),
    _one_sample,
    _wrong_pack_sizes,
    _microbatch_of_packs,
)
"""All rules for packed samples."""
