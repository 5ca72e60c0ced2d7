"""Rules on sizes that exceed the memory of any machine, so that typos are reported before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from string import ascii_lowercase

from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

MAX_LAYERS = 10_000
_WIDTH, _EXPERTS, _TOKENS, _MANY, _PARAMETERS = 2**20, 2**16, 10**9, 10**8, 10**15

_LIMITS: Mapping[str, tuple[int, str, tuple[str, ...]]] = {
    "SZ01": (
        MAX_LAYERS,
        "each layer is built separately, and the deepest models have some hundred",
        (
            "model.num_layers",
            "model.encoder_num_layers",
            "model.vision_num_layers",
            "model.mtp_num_layers",
            "model.recompute_num_layers",
        ),
    ),
    "SZ02": (
        _WIDTH,
        "a square weight of this width requires 2 TiB in bfloat16, more than any GPU has",
        (
            "model.hidden_size",
            "model.ffn_hidden_size",
            "model.moe_ffn_hidden_size",
            "model.moe_shared_expert_intermediate_size",
            "model.num_attention_heads",
            "model.num_query_groups",
            "model.kv_channels",
            "model.q_lora_rank",
            "model.kv_lora_rank",
            "model.qk_head_dim",
            "model.qk_pos_emb_head_dim",
            "model.v_head_dim",
            "model.linear_key_head_dim",
            "model.linear_value_head_dim",
            "model.linear_num_key_heads",
            "model.linear_num_value_heads",
            "model.mamba_state_dim",
            "model.mamba_head_dim",
            "model.mamba_num_groups",
            "model.mamba_num_heads",
            "model.vision_hidden_size",
            "model.vision_ffn_hidden_size",
            "model.vision_num_attention_heads",
            "model.projector_hidden_size",
            "model.image_size",
        ),
    ),
    "SZ03": (
        _EXPERTS,
        "the router of each layer computes a score for every expert and token",
        ("model.num_moe_experts",),
    ),
    "SZ04": (
        _MANY,
        "the embedding has a row, and each token a logit, for every entry",
        (
            "model.vocab_size",
            "model.make_vocab_size_divisible_by",
            "tokenizer.vocab_size",
            "dataset.vocab_size",
        ),
    ),
    "SZ05": (
        _TOKENS,
        "the activations of one sequence of this length exceed the memory of a data center",
        (
            "model.seq_length",
            "model.max_position_embeddings",
            "model.decoder_seq_length",
            "dataset.seq_length",
            "dataset.decoder_seq_length",
        ),
    ),
    "SZ06": (
        _MANY,
        "a step reads all of these sequences before it updates the weights",
        (
            "train.global_batch_size",
            "train.micro_batch_size",
            "validation.eval_global_batch_size",
            "validation.eval_micro_batch_size",
        ),
    ),
    "SZ07": (10**8, "no cluster has so many GPUs", ("facts.world_size",)),
}
"""Id of the rule to its maximum, the reason, and the limited fields."""

SIZES = tuple(path for _, _, paths in _LIMITS.values() for path in paths)
"""Fields with a limit."""

_FACTORS = (
    "model.hidden_size",
    "model.num_layers",
    "model.ffn_hidden_size",
    "model.num_moe_experts",
    "model.vocab_size",
)


def _at_most(most: int, value: int | None) -> str | None:
    return f"is {value:,}, more than {most:,}" if value is not None and value > most else None


def _parameters(
    hidden: int | None, layers: int | None, inner: int | None, experts: int | None, vocabulary: int | None
) -> str | None:
    sizes = (hidden, _WIDTH), (layers, MAX_LAYERS), (inner, _WIDTH), (experts, _EXPERTS), (vocabulary, _MANY)
    if any(size is not None and size > most for size, most in sizes):
        return None  # a rule on that field reports it
    width = hidden or 0
    of_layers = prod((layers or 0, width, 4 * width + 2 * (inner or 4 * width) * (experts or 1)))
    total = of_layers + 2 * width * (vocabulary or 0)
    return (
        f"results in about {total:.1e} parameters, more than {_PARAMETERS:.0e}"
        if total > _PARAMETERS
        else None
    )


def _limit(number: str, path: str, most: int, why: str) -> Rule:
    test: Callable[..., str | None] = partial(_at_most, most)
    return rule(
        number,
        path,
        test,
        why=why,
        fix=f"Set {path.removeprefix('facts.')} to at most {most:,}.",
        fails=(10**13,),
        passes=(4096 if most > MAX_LAYERS else 128,),
    )


RULES: tuple[Rule, ...] = (
    *(
        _limit(f"{number}{letter}" if len(paths) > 1 else number, path, most, why)
        for number, (most, why, paths) in _LIMITS.items()
        for letter, path in zip(ascii_lowercase, paths, strict=False)
    ),
    rule(
        "SZ08",
        _FACTORS,
        _parameters,
        why="the weights require thousands of TiB",
        fix="Lower one of the sizes.",
        fails=(10**6, 10**4, 10**6, 1, 10**8),
        passes=(4096, 32, 16384, None, 128_000),
    ),
)
"""The largest trained models have about 10**12 parameters; every limit is at least a hundred times larger."""
