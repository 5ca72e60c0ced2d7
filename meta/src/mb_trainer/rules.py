"""Rules of the trainer: settings that this version does not support are rejected, never ignored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mb_config.rules.cuda_graphs import full_iteration
from mb_config.rules.versions import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition that a configuration must satisfy."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def must_stay(
    number: int,
    path: str,
    default: object,
    *,
    asked: object,
    instead: str,
    why: str = "nothing in this version carries it out",
) -> Rule:
    """Return a rule that rejects every other value of a field that is not implemented."""
    return Rule(
        id=f"T{number:02d}",
        fields=(path,),
        test=lambda value: (
            None if value in (default, None) else f"{json.dumps(value, default=str)} would have no effect"
        ),
        why=why,
        fix=f"Leave it at {json.dumps(default)}. {instead}".strip(),
        fails={path: asked},
        passes={path: default},
    )


PAIRED = ("model.decoder_seq_length", "dataset.decoder_seq_length")

SHARDED = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


def pairs_for_an_encoder_and_a_decoder(number: int, first: str, second: str) -> Rule:
    """Return the rule that model and dataset are both for an encoder and a decoder, reported on one of the two."""

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
    """Reject norms of sharded gradients, of which a rank may have no part."""
    return "is true under Megatron-FSDP" if wanted and any(on) else None


def no_forward_passes(on: bool | None, impl: str | None, modules: Any, overlapped: bool | None) -> str | None:
    """Reject timing of forward passes that do not run one by one."""
    whole = full_iteration(impl or "none", modules, None)
    reason = "the step is one CUDA graph" if whole else "they are made together with backward passes"
    return f"is true, but {reason}" if on and (whole or overlapped) else None


_TIMED = (
    "straggler.log_straggler",
    "model.cuda_graph_impl",
    "model.cuda_graph_modules",
    "model.overlap_moe_expert_parallel_comm",
)


def no_local_layers(
    implementation: str, cpu: bool, latent: bool | None, pattern: str | None, decoder_length: int | None
) -> str | None:
    """Reject Megatron's local layers on a GPU for models without such layers."""
    kinds = {"multi-latent attention": latent, "a hybrid": pattern, "a T5": decoder_length}
    asked = [kind for kind, there in kinds.items() if there]
    return f"is local for {' and '.join(asked)}" if implementation == "local" and not cpu and asked else None


_LOCAL = (
    "model.transformer_impl",
    "facts.cpu",
    "model.multi_latent_attention",
    "model.hybrid_layer_pattern",
    "model.decoder_seq_length",
)

LOGITS_SINCE = (2, 9)
"""Minimum version of Transformer Engine whose attention returns its largest logits."""


def engine_without_logits(clip: bool | None, log: bool | None, version: str) -> str | None:
    """Reject attention-logit metrics that the installed Transformer Engine does not return."""
    asked = [name for name, on in (("qk_clip", clip), ("log_max_attention_logit", log)) if on]
    if not asked or at_least(version, *LOGITS_SINCE):
        return None
    return f"{' and '.join(asked)} with Transformer Engine {version}"


_LOGITS = ("model.qk_clip", "model.log_max_attention_logit", "facts.transformer_engine_version")


RULES = (
    must_stay(14, "validation.test_mode", False, asked=True, instead=""),
    Rule(
        id="T48",
        fields=("inprocess_restart.enabled",),
        test=lambda on: "true would have no effect" if on else None,
        why="the trainer does not restart inside its processes, so that a fault ends them",
        fix="Set inprocess_restart.enabled=false; torchrun --max-restarts=N starts the processes again.",
        fails={"inprocess_restart.enabled": True},
        passes={"inprocess_restart.enabled": False},
    ),
    must_stay(39, "optimizer.optimizer_cuda_graph", False, asked=True, instead=""),
    must_stay(15, "dataset.full_validation", None, asked=True, instead="Set validation.full_validation."),
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
    Rule(
        id="T43",
        fields=_LOCAL,
        test=no_local_layers,
        why="on a GPU only Transformer Engine has layers for it",
        fix="Install transformer-engine and leave model.transformer_impl at transformer_engine.",
        fails=dict(zip(_LOCAL, ("local", False, True, None, None), strict=True)),
        passes=dict(zip(_LOCAL, ("local", True, True, None, None), strict=True)),
    ),
    Rule(
        id="T44",
        fields=_LOGITS,
        test=engine_without_logits,
        why="earlier versions do not say how large the attention logits were",
        fix=f"Install Transformer Engine {LOGITS_SINCE[0]}.{LOGITS_SINCE[1]} or later, or switch it off.",
        fails=dict(zip(_LOGITS, (True, False, "2.8.0"), strict=True)),
        passes=dict(zip(_LOGITS, (True, False, "2.9.0"), strict=True)),
    ),
    Rule(
        id="T42",
        fields=_TIMED,
        test=no_forward_passes,
        why="the speed of a rank is the time of its forward passes, which nobody calls one by one",
        fix="Set straggler.log_straggler=false, or the other at its default.",
        fails=dict(zip(_TIMED, (True, "full_iteration", None, False), strict=True)),
        passes=dict(zip(_TIMED, (True, "transformer_engine", None, False), strict=True)),
    ),
    pairs_for_an_encoder_and_a_decoder(31, *PAIRED),
    pairs_for_an_encoder_and_a_decoder(32, *reversed(PAIRED)),
)
"""Rules of the trainer."""
