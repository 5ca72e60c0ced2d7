"""Rules of the trainer itself: sections that this version does not carry out are refused, never ignored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def not_carried_out(number: int, section: str, what: str) -> Rule:
    """Make the rule that refuses a section as a whole."""
    return Rule(
        id=f"T{number:02d}",
        fields=(section,),
        test=lambda value: f"{section} is set",
        why=f"this version has no {what}, and would leave it out without a word",
        fix=f"Remove the section {section}.",
        fails={section: {}},
        passes={section: None},
    )


def must_stay(number: int, path: str, default: object, *, asked: object, instead: str) -> Rule:
    """Make the rule that refuses any other value of a field that nothing reads."""
    return Rule(
        id=f"T{number:02d}",
        fields=(path,),
        test=lambda value: (
            None if value in (default, None) else f"{json.dumps(value, default=str)} would have no effect"
        ),
        why="nothing in this version carries it out",
        fix=f"Leave it at {json.dumps(default)}. {instead}".strip(),
        fails={path: asked},
        passes={path: default},
    )


NO_RECORDER = "Set NCCL's own environment variables through env_vars."

PAIRED = ("model.decoder_seq_length", "dataset.decoder_seq_length")

SHARDED = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


def pairs_for_an_encoder_and_a_decoder(number: int, first: str, second: str) -> Rule:
    """Make the rule that model and dataset are both for an encoder and a decoder, seen from one of the two."""

    def differs(one: int | None, other: int | None) -> str | None:
        return f"is {one}, but {second}={other}" if one is not None and one != other else None

    return Rule(
        id=f"T{number:02d}",
        fields=(first, second),
        test=differs,
        why="only a T5 reads pairs of sequences, and its decoder writes the second of them whole",
        fix="Give model and dataset the same decoder_seq_length: a T5ModelConfig with a T5DatasetConfig, a "
        "T5TextCorpusConfig or a section of your own, and other models with other data.",
        fails={first: 128, second: None},
        passes={first: 128, second: 128},
    )


def no_norms_of_shards(wanted: bool | None, *on: bool | None) -> str | None:
    """Refuse norms of gradients of which a rank may have nothing."""
    return "is true under Megatron-FSDP" if wanted and any(on) else None


RULES = (
    must_stay(14, "validation.test_mode", False, asked=True, instead=""),
    must_stay(20, "dist.lazy_mpu_init", False, asked=True, instead=""),
    must_stay(23, "dist.use_decentralized_pg", False, asked=True, instead=""),
    must_stay(25, "dist.flight_recorder_dump_path", None, asked="dump", instead=NO_RECORDER),
    must_stay(26, "dist.disable_jit_fuser", False, asked=True, instead=""),
    must_stay(27, "dist.enable_megatron_core_experimental", False, asked=True, instead=""),
    must_stay(15, "dataset.full_validation", None, asked=True, instead="Set validation.full_validation."),
    must_stay(28, "dist.eval_context_parallel_size", None, asked=2, instead=""),
    Rule(
        id="T36",
        fields=("logger.log_l2_norm_grad_to_tensorboard", *SHARDED),
        test=no_norms_of_shards,
        why="it keeps whole rows of a gradient on some of the ranks, and none of it on others, which then have no norm "
        "to add",
        fix="Set logger.log_l2_norm_grad_to_tensorboard=false; grad-norm, of all gradients together, is always logged.",
        fails={**dict.fromkeys(SHARDED, True), "logger.log_l2_norm_grad_to_tensorboard": True},
        passes={**dict.fromkeys(SHARDED, True), "logger.log_l2_norm_grad_to_tensorboard": False},
    ),
    pairs_for_an_encoder_and_a_decoder(31, *PAIRED),
    pairs_for_an_encoder_and_a_decoder(32, *reversed(PAIRED)),
)
"""Every rule of the trainer."""
