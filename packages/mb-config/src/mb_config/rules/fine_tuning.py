"""Rules on fine-tuning: initial weights, adapters, packed sequences, export."""

from __future__ import annotations

from typing import Any

from mb_schema.rule_kinds import excludes, requires, rule
from mb_schema.rules import Rule, value_at

_EXPORT = (
    "checkpoint.also_save_hf_checkpoint",
    "checkpoint.hf_source_path",
    "model.hf_model_id",
    "tokenizer.tokenizer_model",
)
_PACK_FIELDS = ("packed_sequence_size", "max_single_sequence_length", "pad_seq_to_mult")
_PACKING = ("dataset.packed_sequence_specs", "train.micro_batch_size", "train.global_batch_size")


def _v129(export: bool | None, *sources: object) -> str | None:
    if not export or any(sources):
        return None
    return "is true, but no Hugging Face model is set"


def _spec(specs: object, name: str) -> Any:
    return value_at(f"specs.{name}", {"specs": specs})


def _v048(specs: object) -> str | None:
    if specs is None:
        return None
    size, longest, multiple = (_spec(specs, name) for name in _PACK_FIELDS)
    if multiple is not None and multiple < 1:
        return f"pad_seq_to_mult={multiple} is below 1"
    if longest is None or size is None or 0 < longest <= size:
        return None
    return f"max_single_sequence_length={longest} is not from 1 to packed_sequence_size={size}"


def _v243(size: int | None, tokens: int | None) -> str | None:
    if size is None or tokens is None or size >= tokens:
        return None
    return f"{size} is below the {tokens} entries of the tokenizer"


def _v139(specs: object, micro: int | None, batch: int | None) -> str | None:
    if specs is None:
        return None
    size = _spec(specs, "packed_sequence_size")
    if size is not None and size <= 0:
        return f"packed_sequence_size={size} is not positive"
    if micro is None or micro == 1:
        return None
    same = f"global_batch_size={batch // micro}, " if batch is not None else ""
    packs = f" and packs of {size * micro} tokens" if size is not None else ""
    return f"each pack is a microbatch, but micro_batch_size={micro}: the equivalent is {same}micro_batch_size=1{packs}"


RULES: tuple[Rule, ...] = (
    excludes(
        "V128",
        {"model.restore_modelopt_state": True, "model.gradient_accumulation_fusion": True},
        why="layers restored by ModelOpt do not support fused gradients",
        fix="Set model.gradient_accumulation_fusion=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    excludes(
        "V128a",
        {"model.restore_modelopt_state": True, "checkpoint.non_persistent_ckpt_type": "local"},
        why="local checkpoints do not contain the state of ModelOpt",
        fix="Set checkpoint.non_persistent_ckpt_type=global or null.",
        fails=(True, "local"),
        passes=(True, "global"),
    ),
    Rule(
        id="V129",
        fields=_EXPORT,
        test=_v129,
        why="the configuration and the tokenizer of the exported model are copied from it",
        fix="Set checkpoint.hf_source_path.",
        fails={_EXPORT[0]: True},
        passes={_EXPORT[0]: True, _EXPORT[1]: "/models/llama"},
    ),
    excludes(
        "V137b",
        {"ddp.average_in_collective": True, "model.calculate_per_token_loss": True},
        why="gradients are divided by the tokens of a step, not by the number of ranks",
        fix="Set ddp.average_in_collective=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    rule(
        "V048",
        "dataset.packed_sequence_specs",
        _v048,
        why="a pack is filled with sequences of at most its size",
        fix="Correct this number.",
        fails=(
            {
                "packed_sequence_size": 4096,
                "max_single_sequence_length": 8192,
            },
        ),
        passes=({"packed_sequence_size": 4096, "pad_seq_to_mult": 2},),
    ),
    rule(
        "V139",
        _PACKING,
        _v139,
        why="a pack is one row of tokens with the start positions of its sequences",
        fix="Set train.micro_batch_size=1 and a positive packed_sequence_size.",
        fails=({"packed_sequence_size": 4096}, 4, 128),
        passes=({"packed_sequence_size": 16384}, 1, 32),
    ),
    rule(
        "V139a",
        ("peft", "checkpoint.pretrained_checkpoint"),
        lambda adapters, weights: None if weights else "is set without pretrained weights",
        why="adapters are trained on top of pretrained weights",
        fix="Set checkpoint.pretrained_checkpoint.",
        fails=({"dim": 8},),
        passes=({"dim": 8}, "/checkpoints/base"),
    ),
    rule(
        "V243",
        ("model.vocab_size", "tokenizer.vocab_size"),
        _v243,
        why="every token requires a row of the embedding",
        fix="Leave model.vocab_size unset, or increase it.",
        fails=(1000, 1001),
        passes=(1024, 1001),
    ),
    rule(
        "V243a",
        ("model.vocab_size", "dataset.vocab_size", "tokenizer.tokenizer_type"),
        lambda rows, entries, other: None if other else _v243(rows, entries),
        why="the tokenizer of the dataset has this number of entries, and every token requires a row of the embedding",
        fix="Leave model.vocab_size unset, increase it, or lower dataset.vocab_size.",
        fails=(100, 4096),
        passes=(257, 4096, "ByteTokenizer"),
    ),
    requires(
        "V246",
        {"ft.enable_ft_package": True},
        {"checkpoint.save": True},
        why="a restarted run resumes from it and reads the measured timeouts",
        fix="Set checkpoint.save or ft.enable_ft_package=false.",
        fails=(True,),
        passes=(True, "checkpoints"),
    ),
)
