"""Rules for the packing of fine-tuning data, ahead of the run or in each micro-batch. Standard library only.

The rules do not apply to a dataset that lacks their first field.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mb_data.finetuning.rules import get_spec
from mb_schema.rule_kinds import SET, among, dataset_rule, excludes, requires
from mb_schema.rules import Rule, rules_in
from mb_schema.versions import at_least

_PACKS, _IN_BATCH = "dataset.packed_sequence_specs", "dataset.pack_sequences_in_batch"

_NOT_PACKED: Mapping[str, tuple[Any, ...]] = {
    "model.decoder_seq_length": (),
    "model.image_token_id": (),
}
"""Fields of models whose layers do not receive the boundaries of samples -> values that are allowed besides null."""

_FIXED_LENGTHS: Mapping[str, tuple[Any, ...]] = {
    "model.cuda_graph_impl": ("none",),
    "model.tp_comm_overlap": (False,),
}
"""Fields that require micro-batches of one length -> values that are allowed besides null."""


def _first_set(allowed: Mapping[str, tuple[Any, ...]], values: Mapping[str, Any]) -> str | None:
    for path, value in values.items():
        if value is not None and value not in allowed[path]:
            return f"is set with {path}={value}"
    return None


_BOUNDARIES = (
    "operations that mix tokens need the boundaries of the samples, and only those of GPT models and hybrids receive "
    "them"
)


@dataset_rule(
    "D75",
    others=_NOT_PACKED,
    why=_BOUNDARIES,
    fix="Leave dataset.packed_sequence_specs unset, or set the other field to its default.",
    fails={"packed_sequence_specs": {}, "model.image_token_id": 5},
    passes={"model.image_token_id": None},
)
def _model_without_packs(packed_sequence_specs, **values):
    return None if packed_sequence_specs is None else _first_set(_NOT_PACKED, values)


_OF_ONE_LENGTH = {**_NOT_PACKED, **_FIXED_LENGTHS}


@dataset_rule(
    "D107",
    others=_OF_ONE_LENGTH,
    why=f"{_BOUNDARIES}; the length of a micro-batch differs from step to step",
    fix="Set dataset.pack_sequences_in_batch=false, or the other field to its default.",
    fails={"pack_sequences_in_batch": True, "model.cuda_graph_impl": "local"},
    passes={"model.cuda_graph_impl": "none"},
)
def _model_without_packed_batches(pack_sequences_in_batch, **values):
    return _first_set(_OF_ONE_LENGTH, values) if pack_sequences_in_batch else None


def _packed_rules(
    in_advance: str, in_batch: str, *, fix: str, fails: Mapping[str, Any], **texts: Any
) -> Callable[[Callable[..., str | None]], tuple[Rule, Rule]]:
    """Return a decorator that makes two rules of a condition on `packed`: on packs, and on packing in each micro-batch.

    Args:
        in_advance: Identifier of the rule on `packed_sequence_specs`.
        in_batch: Identifier of the rule on `pack_sequences_in_batch`.
        fix: Instruction, to which the one that turns the packing off is appended.
        fails: Example that the rules reject, without `packed`.
        texts: Further arguments of `section_rule`.
    """

    def of(test: Callable[..., str | None]) -> tuple[Rule, Rule]:
        def rule(id: str, path: str, off: str, example: object) -> Rule:
            paths, failing = {"packed": path}, {"packed": example, **fails}
            return dataset_rule(id, paths=paths, fix=f"{fix}, or {off}.", fails=failing, **texts)(test)

        return (
            rule(in_advance, _PACKS, f"leave {_PACKS} unset", {}),
            rule(in_batch, _IN_BATCH, f"set {_IN_BATCH}=false", True),
        )

    return of


@_packed_rules(
    "D122",
    "D123",
    why="Megatron Core packs gated-delta layers, and hybrids under context parallelism, with kernels of a GPU that "
    "are not tested here against separate samples",
    fix="Remove G from model.hybrid_layer_pattern, set model.context_parallel_size=1",
    fails={"model__hybrid_layer_pattern": "MG*-"},
    passes={"model__hybrid_layer_pattern": "M*-"},
)
def _packed_hybrid(packed, model__hybrid_layer_pattern, cp):
    pattern = model__hybrid_layer_pattern
    if packed in (None, False) or pattern is None:
        return None
    if "G" in pattern:
        return f"is set with gated-delta layers (hybrid_layer_pattern={pattern})"
    if (cp or 1) > 1:
        return f"is set with hybrid_layer_pattern={pattern} and context_parallel_size={cp}"
    return None


@_packed_rules(
    "D133",
    "D134",
    why="Megatron Core separates the samples of a pack in the memory-efficient kernel of Mamba layers only",
    fix="Leave model.transformer.use_mamba_mem_eff_path unset",
    fails={"model__hybrid_layer_pattern": "M*", "model__transformer": {"use_mamba_mem_eff_path": False}},
    passes={"model__transformer": {}},
)
def _packed_without_efficient_mamba(packed, model__hybrid_layer_pattern, model__transformer):
    if packed in (None, False) or "M" not in (model__hybrid_layer_pattern or ""):
        return None
    switched_off = (model__transformer or {}).get("use_mamba_mem_eff_path") is False
    return "is set with model.transformer.use_mamba_mem_eff_path=false" if switched_off else None


@_packed_rules(
    "D125",
    "D126",
    why="Megatron Core's own attention has no packed sequences, and the one for the CPU no sinks",
    fix="Set model.softmax_type=vanilla",
    fails={"model__softmax_type": "learnable", "cpu": True},
    passes={"cpu": False},
)
def _packed_sinks_on_the_cpu(packed, model__softmax_type, *, cpu):
    return _sinks(packed, model__softmax_type) if cpu else None


@_packed_rules(
    "D127",
    "D128",
    why="earlier versions of Transformer Engine have no kernel for packed sequences with sinks",
    fix="Install Transformer Engine 2.12 or later",
    fails={"model__softmax_type": "learnable", "transformer_engine_version": "2.11.0"},
    passes={"transformer_engine_version": "2.12.0"},
)
def _packed_sinks_of_the_engine(packed, model__softmax_type, *, transformer_engine_version):
    found = _sinks(packed, model__softmax_type)
    is_unknown = transformer_engine_version is None
    if found is None or is_unknown or at_least(transformer_engine_version, 2, 12):
        return None
    return f"{found} and Transformer Engine {transformer_engine_version}, not 2.12"


def _sinks(packed: Any, softmax: str | None) -> str | None:
    plain = packed in (None, False) or softmax in (None, "vanilla")
    return None if plain else f"is set with model.softmax_type={softmax}"


@_packed_rules(
    "D81",
    "D109",
    why="Megatron Core's local attention does not support packed sequences",
    fix="Use Transformer Engine (model.transformer_impl=transformer_engine)",
    fails={"model__transformer_impl": "local", "cpu": False},
    passes={"cpu": True},
)
def _packed_by_local_attention(packed, model__transformer_impl, *, cpu):
    if packed in (None, False) or cpu is not False or model__transformer_impl != "local":
        return None
    return "is set with transformer_impl=local on a GPU"


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
    *rules_in(globals()),
    *_packed_hybrid,
    *_packed_without_efficient_mamba,
    *_packed_sinks_on_the_cpu,
    *_packed_sinks_of_the_engine,
    *_packed_by_local_attention,
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
    excludes(
        "V102",
        {_IN_BATCH: True, _PACKS: SET},
        why="samples are packed once",
        fix="Set one of the two.",
        fails={"dataset.packed_sequence_specs": {"packed_sequence_size": 4096}},
    ),
)
"""All rules for packed samples."""
