"""Rules on context parallelism."""

from __future__ import annotations

from math import prod

from mb_schema.rule_kinds import excludes, rule, within
from mb_schema.rules import Rule

_CP = "model.context_parallel_size"


def _v137(length: int | None, cp: int | None) -> str | None:
    if length is None or not cp or cp < 2 or length % (2 * cp) == 0:
        return None
    return f"{length} is not a multiple of 2 x cp = {2 * cp}"


def _v154(kind: object, cp: int | None, layers: int | None) -> str | None:
    if (cp or 1) == 1 or kind is None or isinstance(kind, str):
        return None
    if not isinstance(kind, list | tuple):
        return f"must be a name or a list of names, not {kind!r}"
    return None if len(kind) == layers else f"{len(kind)} entries for {layers} layers"


def _v155(kind: object, sizes: list[int] | None) -> str | None:
    kinds = [kind] if isinstance(kind, str) else list(kind) if isinstance(kind, list | tuple) else []
    if sizes is None and any("a2a+p2p" in str(entry) for entry in kinds):
        return "a2a+p2p requires the sizes of the hierarchy, which are not set"
    return None


def _v156(sizes: list[int] | None, cp: int | None) -> str | None:
    if not sizes or prod(sizes) == (cp or 1):
        return None
    return f"the product of {list(sizes)} is {prod(sizes)}, but cp={cp or 1}"


RULES: tuple[Rule, ...] = (
    rule(
        "V137",
        ("model.seq_length", _CP),
        _v137,
        why="each context-parallel rank processes two chunks of the sequence, to balance the causal mask",
        fix="Make model.seq_length a multiple of twice model.context_parallel_size.",
        fails=(2050, 2),
        passes=(2048, 2),
    ),
    rule(
        "V154",
        ("model.cp_comm_type", _CP, "model.num_layers"),
        _v154,
        why="a list contains the communication type of each layer",
        fix="Set model.cp_comm_type to one name, or to one name per layer.",
        fails=(["p2p", "a2a"], 2, 4),
        passes=("p2p", 2, 4),
    ),
    rule(
        "V155",
        within("model", "cp_comm_type hierarchical_context_parallel_sizes"),
        _v155,
        why="without them Megatron Core silently runs without context parallelism",
        fix="Set model.hierarchical_context_parallel_sizes, or another model.cp_comm_type.",
        fails=("a2a+p2p",),
        passes=("a2a+p2p", [2, 2]),
    ),
    rule(
        "V156",
        ("model.hierarchical_context_parallel_sizes", _CP),
        _v156,
        why="the levels of the hierarchy form the context-parallel group",
        fix="Make the product of the sizes equal model.context_parallel_size.",
        fails=([2, 2], 8),
        passes=([2, 4], 8),
    ),
    excludes(
        "V157",
        {"dist.use_decentralized_pg": True, "model.hierarchical_context_parallel_sizes": True},
        why="Megatron Core passes no groups for the levels of the hierarchy",
        fix="Set dist.use_decentralized_pg=false or model.hierarchical_context_parallel_sizes=null.",
        fails=(True, [2, 2]),
        passes=(False, [2, 2]),
    ),
)
