"""Rules on numbers out of their range, and on sizes that exceed any machine: typos, reported before they are used.

The largest trained models have about 10**12 parameters; every limit is at least a hundred times larger.
"""

from collections.abc import Mapping
from math import prod

from mb_schema.rule_kinds import at_most, in_range, lettered, model_rule, within
from mb_schema.rules import Rule

_LAYERS, _WIDTH, _EXPERTS, _TOKENS, _ENTRIES, _PARAMETERS = 10_000, 2**20, 2**16, 10**9, 10**8, 10**15

_LIMITS: Mapping[str, tuple[int, str, str]] = {
    "SZ01": (
        _LAYERS,
        "each layer is built separately, and the deepest models have some hundred",
        "num_layers encoder_num_layers vision_num_layers mtp_num_layers recompute_num_layers",
    ),
    "SZ02": (
        _WIDTH,
        "a square weight of this width requires 2 TiB in bfloat16, more than any GPU has",
        "hidden_size ffn_hidden_size moe_ffn_hidden_size moe_shared_expert_intermediate_size num_attention_heads "
        "num_query_groups kv_channels q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim "
        "linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads mamba_state_dim "
        "mamba_head_dim mamba_num_groups mamba_num_heads vision_hidden_size vision_ffn_hidden_size "
        "vision_num_attention_heads projector_hidden_size image_size",
    ),
    "SZ03": (
        _EXPERTS,
        "the router of each layer computes a score for every expert and token",
        "num_moe_experts",
    ),
    "SZ04": (
        _ENTRIES,
        "the embedding has a row, and each token a logit, for every entry",
        "vocab_size make_vocab_size_divisible_by",
    ),
    "SZ05": (
        _TOKENS,
        "the activations of one sequence of this length exceed the memory of a data center",
        "seq_length max_position_embeddings decoder_seq_length",
    ),
}
"""Number of the rules to the maximum, the reason, and the limited fields."""


def _limit_rules(number: str, limit: int, why: str, names: str) -> list[Rule]:
    """Return a rule for each field, with a letter after the number if there are several."""
    paths = within("model", names)
    pairs = lettered(number, paths) if len(paths) > 1 else [(number, paths[0])]
    return [at_most(id, path, limit, why=why) for id, path in pairs]


@model_rule(
    "SZ08",
    why="the weights require thousands of TiB",
    fix="Lower one of the sizes.",
    fails={"hidden_size": 10**6, "num_layers": 10**4, "ffn_hidden_size": 10**6, "num_moe_experts": 1},
    passes={
        "hidden_size": 4096,
        "num_layers": 32,
        "ffn_hidden_size": 16384,
        "num_moe_experts": None,
        "vocab_size": 128_000,
    },
)
def _too_many_parameters(hidden_size, num_layers, ffn_hidden_size, num_moe_experts, vocab_size):
    sizes = (
        (hidden_size, _WIDTH),
        (num_layers, _LAYERS),
        (ffn_hidden_size, _WIDTH),
        (num_moe_experts, _EXPERTS),
        (vocab_size, _ENTRIES),
    )
    if any(size is not None and size > limit for size, limit in sizes):
        return None  # a rule on that field reports it
    width = hidden_size or 0
    of_layers = prod(
        (num_layers or 0, width, 4 * width + 2 * (ffn_hidden_size or 4 * width) * (num_moe_experts or 1))
    )
    total = of_layers + 2 * width * (vocab_size or 0)
    if total > _PARAMETERS:
        return f"results in about {total:.1e} parameters, more than {_PARAMETERS:.0e}"
    return None


RULES: tuple[Rule, ...] = (
    *(
        in_range(
            id,
            path,
            0,
            below=1,
            why="it is the probability that an activation is set to zero",
            fix=f"Set {path} to 0 (none) or a number such as 0.1.",
        )
        for id, path in lettered("MN01", ("model.hidden_dropout", "model.attention_dropout"))
    ),
    *(
        in_range(
            id,
            path,
            above=0,
            why="it is the standard deviation of initial weights, or the lower bound of the divisor of a norm",
            fix=f"Set {path} to a number such as 0.02 (standard deviation) or 1e-5 (epsilon).",
        )
        for id, path in lettered("MN02", ("model.init_method_std", "model.layernorm_epsilon"))
    ),
    in_range(
        "MN03",
        "model.rotary_percent",
        above=0,
        high=1,
        why="it is the fraction of each attention head to which rotary position embeddings apply",
        fix="Set model.rotary_percent to a number such as 1.0 or 0.5.",
    ),
    *(limit for number, limits in _LIMITS.items() for limit in _limit_rules(number, *limits)),
    _too_many_parameters,
)
