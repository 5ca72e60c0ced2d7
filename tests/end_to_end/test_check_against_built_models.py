"""`check` rejects models of every family and parallel layout that Megatron Core cannot build, or run on one rank.

Seeded random models, mostly valid; MB_MODELS=2000 draws more of them. Run with -s for the counts.
"""

import os
from collections import Counter

import pytest
from random_models import (
    EP,
    ETP,
    STARTS,
    TP,
    built,
    checked,
    configured,
    draw,
    numbered,
    world_of,
)

MODELS = int(os.environ.get("MB_MODELS", "60"))

BEYOND_BUILDING = {
    "G03": "heads would be narrower than hidden_size / num_attention_heads",
    "G05": "batches have no positions for it",
    "G06": "local layers ignore the switch",
    "G07": "local layers ignore the precision",
    "G08": "local layers ignore it",
    "G12": "the sizes would be ignored",
    "G13": "Megatron recomputes nothing",
    "G14": "positions would be counted twice",
    "G15": "the groups would be ignored",
    "G17": "the windows would be ignored",
    "G18": "layers of experts that the model does not have",
    "G20": "stages would exchange the wrong tensors",
    "G22": "the layout would be ignored without pipeline stages",
    "G23": "gradients of the embedding would not be summed",
    "G34": "fails in the first step",
    "G53": "the parts of a sequence would have the same dropout mask",
    "G40": "no layer would use the local base",
    "G35": "fails in the first step, or gives a wrong loss",
    "G32": "fails in the first step",
    "HY": "the pattern decides it, or copies would diverge",
    "TF": "the run would hang, or Megatron ignores the setting",
    "M": "the schedule or the gradient of images would be wrong",
    "MN": "numbers without meaning",
    "K": "refused by Megatron on a GPU; the host replaces the kernel",
    "O": "overlap that the schedule does not have",
    "P": "Megatron computes with fewer key/value heads, or refuses it in its process groups or in the first step",
    "V": "conditions of batches, graphs and machines",
    "T": "settings that nothing applies",
    "TR": "batches",
}
"""Reasons for which rules, by id or by their letters, reject models that Megatron builds."""


def is_known(problem: str) -> bool:
    """Return whether a rule is known to reject models that can be built."""
    number = problem.split()[0]
    return (
        number[:3] in BEYOND_BUILDING
        or number.rstrip("abcdefghijklmnopM").rstrip("0123456789") in BEYOND_BUILDING
    )


def verdict(name, values):
    """Return what check rejects and why Megatron cannot build it."""
    world = world_of(values)
    refused, resolved = checked(configured(name, values), world=world)
    return refused, built(resolved.model, world=world)


def test_check_refuses_random_models_that_megatron_cannot_build():
    counts, silent, strict = Counter(), [], []
    for seed in range(MODELS):
        name, values = draw(numbered(seed))
        if world_of(values) > 96:
            continue
        refused, died = verdict(name, values)
        counts[
            "check refuses" if refused else "check accepts", "Megatron fails" if died else "Megatron builds"
        ] += 1
        if died and not refused:
            silent.append((seed, name, died))
        if refused and not died and not all(map(is_known, refused)):
            strict.append((seed, name, refused))
    print(dict(counts))
    assert (silent, strict) == ([], [])
    assert (
        min(counts["check accepts", "Megatron builds"], counts["check refuses", "Megatron fails"])
        > MODELS // 5
    )


SP = {TP: 2, "sequence_parallel": True}
UNEVEN = {
    "G27": ("dense", {"vocab_size": 65, **SP}),
    "G28": ("dense", {"ffn_hidden_size": 49, **SP}),
    "G28 with experts": ("experts", {"ffn_hidden_size": 49, "moe_layer_freq": 2, **SP}),
    "G28 hybrid": ("hybrid", {"ffn_hidden_size": 49, **SP}),
    "G28 t5": ("t5", {"ffn_hidden_size": 49, **SP}),
    "G29": ("experts", {"moe_ffn_hidden_size": 17, **SP}),
    "G29 etp": ("experts", {"moe_ffn_hidden_size": 17, EP: 2, ETP: 2}),
    "G29 hybrid": ("hybrid experts", {"moe_ffn_hidden_size": 17, "num_moe_experts": 4, **SP}),
    "G30": ("shared experts", {"moe_shared_expert_intermediate_size": 17, EP: 2, ETP: 1, **SP}),
    "G31": ("latent", {"kv_lora_rank": 9, **SP}),
    "G31 queries": ("latent", {"q_lora_rank": 25, **SP}),
    "G15a": ("dense", {"mla_down_proj_fusion": True}),
    "G32": ("grouped", {"kv_channels": 5}),
    "G32a": ("latent", {"qk_pos_emb_head_dim": 3}),
    "G33": ("shared experts", {"add_bias_linear": True}),
    "G34": ("experts", {"bias_activation_fusion": True}),
    "G35": ("dense", {"parallel_output": False}),
    "G18": ("dense", {"moe_layer_freq": [0, 0, 1]}),
    "K42": ("latent", {"rotary_interleaved": True}),
    "G58": ("dense", {"position_embedding_type": "yarn", "rotary_interleaved": True}),
    "HY07": ("hybrid", {"mamba_num_groups": 3}),
    "HY07 chunk": ("hybrid", {"mamba_chunk_size": 0}),
    "HY08": ("hybrid", {"linear_conv_kernel_dim": 0}),
    "M04": ("mimo", {"vision_ffn_hidden_size": 31, TP: 2, "sequence_parallel": True, "hidden_dropout": 0.0}),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_a_width_that_ranks_cannot_share_is_refused_and_megatron_agrees(case):
    name, values = UNEVEN[case]
    refused, died = verdict(name, {**STARTS[name][1], **values})
    assert died is not None
    assert case.split()[0] in {problem.split()[0] for problem in refused}


@pytest.mark.parametrize("name", STARTS)
def test_sound_models_are_accepted_and_built(name):
    assert verdict(name, STARTS[name][1]) == ([], None)


@pytest.mark.parametrize("heads", [{"kv_channels": 5}, {"num_attention_heads": 5, "num_query_groups": 5}])
def test_a_hybrid_model_without_attention_layers_has_heads_of_any_width(heads):
    values = {**STARTS["hybrid"][1], "hybrid_layer_pattern": "M-M-", **heads}
    assert verdict("hybrid", values) == ([], None)


def test_latent_attention_needs_no_whole_heads():
    assert verdict("latent", {**STARTS["latent"][1], "hidden_size": 36}) == ([], None)
