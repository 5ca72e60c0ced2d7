"""Both kinds of fully sharded data parallelism match plain data parallelism, or are rejected."""

from pathlib import Path

import pytest
import torch
from packaging.version import Version

from mb_host import function_in

RANKS = Path(__file__).parent / "fsdp_ranks.py"
SHARDED = {"use_distributed_optimizer": True}
PER_TOKEN = {"calculate_per_token_loss": True}
BF16 = {"bf16": True, "params_dtype": "bfloat16"}
TIED = {"share_embeddings_and_output_weights": True}
VARIANTS = {
    "norm_position": "pre_and_post",
    "layernorm_zero_centered_gamma": True,
    "qk_layernorm": True,
    "qk_layernorm_scope": "all_heads",
    "attn_logit_softcapping": 2.0,
    "embedding_multiplier": 4.0,
    "final_logit_softcapping": 3.0,
}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}
CP2 = {"context_parallel_size": 2}
EP2 = {
    "expert_model_parallel_size": 2,
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "none",
}


def megatron(strategy, **ddp):
    return "megatron", {**SHARDED, "data_parallel_sharding_strategy": strategy, **ddp}


TORCH = ("torch", {})
FULL = megatron("optim_grads_params")
TWO = {
    "torch": ({}, *TORCH),
    "torch per token": (PER_TOKEN, *TORCH),
    "torch variants": (VARIANTS, *TORCH),
    "no_shard": ({}, *megatron("no_shard")),
    "optim overlap": ({}, *megatron("optim", overlap_grad_reduce=True)),
    "optim_grads": ({}, *megatron("optim_grads")),
    "optim_grads_params": ({}, *FULL),
    "optim_grads_params variants": (VARIANTS, *FULL),
    "optim_grads_params per token tied": ({**PER_TOKEN, **TIED}, *FULL),
}
FOUR = {
    "torch tp2": (TP2, *TORCH),
    "torch pp2": (PP2, *TORCH),
    "torch cp2": (CP2, *TORCH),
    "megatron tp2": (TP2, *FULL),
    "megatron cp2": (CP2, *FULL),
    "megatron ep2": (EP2, *FULL),
}


@pytest.fixture(scope="module")
def reference():
    """Return a function: pool, settings -> losses and norms under plain data parallelism."""
    known = {}

    def train(pool, settings):
        key = pool.world_size, repr(settings)
        if key not in known:
            known[key] = pool.run(function_in(RANKS, "train"), settings, "ddp", {})[-1]
        return known[key]

    return train


def agree(pool, settings, kind, ddp, reference, *, tolerance=1e-5):
    losses, norms = reference(pool, settings)
    found, norms_found = pool.run(function_in(RANKS, "train"), settings, kind, ddp)[-1]
    assert found == pytest.approx(losses, abs=tolerance, rel=0)
    assert norms_found == pytest.approx(norms, abs=10 * tolerance, rel=0)


@pytest.mark.parametrize(("settings", "kind", "ddp"), TWO.values(), ids=TWO.keys())
def test_two_shards_match_two_replicas(pool, tiny, reference, settings, kind, ddp):
    agree(pool, {**tiny, **settings}, kind, ddp, reference)


@pytest.mark.matrix
@pytest.mark.parametrize(("settings", "kind", "ddp"), FOUR.values(), ids=FOUR.keys())
def test_shards_with_other_parallelism(four_ranks, tiny, reference, settings, kind, ddp):
    agree(four_ranks, {**tiny, **settings}, kind, ddp, reference)


@pytest.mark.parametrize(("kind", "ddp"), [TORCH, FULL], ids=["torch", "megatron"])
def test_half_precision_within_its_tolerance(pool, tiny, reference, kind, ddp):
    agree(pool, {**tiny, **BF16}, kind, ddp, reference, tolerance=2e-3)


@pytest.mark.skipif(
    Version(torch.__version__) >= Version("2.15.dev0"),
    reason="Megatron Core 0.19 cannot save FSDP2's optimizer with torch 2.15; mb-checkpoint can",
)
@pytest.mark.parametrize("settings", [{}, BF16], ids=["float32", "bf16"])
@pytest.mark.parametrize(("saving", "kind"), [("torch", "torch"), ("torch", "ddp"), ("ddp", "torch")])
def test_resuming_matches_an_uninterrupted_run(pool, tiny, tmp_path, settings, saving, kind):
    """Exact under FSDP2; from and to plain data parallelism within their tolerance."""
    settings = {**tiny, **settings}
    losses, norms = pool.run(function_in(RANKS, "train"), settings, *TORCH)[-1]
    found = pool.run(function_in(RANKS, "train_in_two_parts"), settings, saving, kind, str(tmp_path))[-1]
    tolerance = 0 if saving == kind else 2e-3 if settings.get("bf16") else 1e-5
    assert found == (pytest.approx(losses[1:], abs=tolerance), pytest.approx(norms[1:], abs=tolerance))


def test_without_no_sync_megatron_fsdp_would_silently_train_incorrectly(pool, tiny, reference):
    _, norms = reference(pool, tiny)
    kind, ddp = megatron("optim", overlap_grad_reduce=True)
    _, wrong = pool.run(function_in(RANKS, "train"), tiny, kind, ddp, True)[-1]
    assert abs(wrong[0] - norms[0]) > 0.1


@pytest.mark.parametrize(
    ("settings", "kind", "ddp", "message"),
    [
        (EP2, *TORCH, "[FS01]"),
        (TIED, *TORCH, "[FS02]"),
        ({}, "torch", SHARDED, "[FS03]"),
        ({"fp16": True, "params_dtype": "float16"}, *TORCH, "[FS04]"),
        ({}, "torch on a layer", {}, "TransformerBlock is not a GPT"),
        ({}, "torch under a head", {}, "output_layer.weight has 1 rows for 2 ranks"),
        ({}, "torch with adapters", {}, "[FS08]"),
        ({}, "torch", {"use_megatron_fsdp": True}, "only one of the two can shard a weight"),
        (PP2, *FULL, "[FS05]"),
        ({}, "megatron", {}, "ddp_config.use_distributed_optimizer=False"),
    ],
)
def test_unsupported_models_are_rejected(pool, tiny, settings, kind, ddp, message):
    for answer in pool.run(function_in(RANKS, "rejection"), {**tiny, **settings}, kind, ddp):
        assert answer.startswith("FsdpError: ")
        assert message in answer
