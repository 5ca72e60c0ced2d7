"""Adapters on experts that are computed together, in Megatron's grouped MLP."""

import peft_ranks
import pytest
import torch
import torch.nn.functional as F
from megatron.core import dist_checkpointing

from mb_host.megatron.layers import host_block_spec
from mb_models import GPTModelConfig, GPTModelProvider
from mb_models.errors import PeftError
from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_models.peft.lora import merge

GROUPED = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "transformer_impl": "local",
}
TARGETS = {LoRA: ["linear_fc1", "linear_fc2"], DoRA: ["linear_fc1", "linear_fc2"]}
TARGETS[CanonicalLoRA] = ["linear_fc1_up", "linear_fc1_gate", "linear_fc2"]
TOKENS = torch.arange(40).reshape(2, 20) * 7 % 96


def build(settings, groups):
    provider = GPTModelProvider(
        GPTModelConfig(**settings), layer_spec=host_block_spec, device=torch.device("cpu")
    )
    return provider.provide_chunks(groups)[0]


def logits(chunk):
    return chunk(TOKENS, torch.arange(20).expand(2, -1), None)


@torch.no_grad()
def disturb(chunk):
    generator = torch.Generator().manual_seed(0)
    for name, value in chunk.named_parameters():
        if ".adapter." in name:
            value.add_(0.1 * torch.randn(value.shape, generator=generator))


def updated(linear, number, tokens):
    """Return what one expert's layer computes for its tokens, by the formulas of LoRA and DoRA."""
    own = linear.adapter if linear.shares_adapters else linear.adapter[str(number)]
    weight = getattr(linear, f"weight{number}").detach()
    delta = torch.cat([pair.scale * pair.lora_b @ pair.lora_a for pair in own.values()])
    total = weight + delta
    magnitude = getattr(linear.adapter, f"magnitude{number}", None)
    if magnitude is not None:
        total = total * (magnitude / total.detach().norm(dim=1))[:, None]
    return tokens @ total.T


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", [LoRA, CanonicalLoRA, DoRA])
def test_each_token_gets_the_update_of_its_expert(tiny, groups, kind, share):
    chunk = build({**tiny, **GROUPED}, groups)
    kind(dim=4, alpha=6.0, share_expert_adapters=share, target_modules=TARGETS[kind]).install([chunk])
    disturb(chunk)
    experts = chunk.decoder.layers[0].mlp.experts
    counts = torch.tensor([3, 0, 5, 2])
    tokens, probabilities = torch.randn(10, 64), torch.rand(10)
    found, _ = experts(tokens, counts, probabilities)
    wanted = []
    for number, (rows, weights) in enumerate(
        zip(tokens.split(counts.tolist()), probabilities.split(counts.tolist()), strict=True)
    ):
        for row, weight in zip(rows, weights, strict=True):
            gate, up = updated(experts.linear_fc1, number, row).chunk(2)
            wanted.append(updated(experts.linear_fc2, number, F.silu(gate) * up * weight))
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-5)
    parameters = {name: value for name, value in experts.named_parameters() if value.requires_grad}
    seen = torch.autograd.grad(found.square().sum(), parameters.values(), allow_unused=True)
    expected = torch.autograd.grad(torch.stack(wanted).square().sum(), parameters.values(), allow_unused=True)
    for name, one, other in zip(parameters, seen, expected, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", [LoRA, CanonicalLoRA, DoRA])
def test_merged_experts_compute_the_same(tiny, groups, kind, share):
    chunk = build({**tiny, **GROUPED}, groups)
    kind(dim=4, share_expert_adapters=share).install([chunk])
    disturb(chunk)
    with torch.no_grad():
        before = logits(chunk)
        merge([chunk])
        torch.testing.assert_close(logits(chunk), before, rtol=1e-4, atol=1e-4)
    assert not [name for name in chunk.state_dict() if ".adapter." in name]


@pytest.mark.parametrize("kind", [LoRA, CanonicalLoRA, DoRA])
def test_adapters_of_each_expert_are_those_of_experts_computed_one_by_one(tiny, groups, tmp_path, kind):
    """Their initial values are equal, and a checkpoint of one loads into the other."""
    grouped = build({**tiny, **GROUPED}, groups)
    single = build({**tiny, **GROUPED, "moe_grouped_gemm": False}, groups)
    metadata = {"dp_cp_group": groups.dp_cp}
    (tmp_path / "base").mkdir()
    dist_checkpointing.save(single.sharded_state_dict(metadata=metadata), str(tmp_path / "base"))
    grouped.load_state_dict(
        dist_checkpointing.load(grouped.sharded_state_dict(metadata=metadata), str(tmp_path / "base"))
    )
    torch.testing.assert_close(logits(grouped), logits(single), rtol=1e-5, atol=1e-5)
    section = kind(
        dim=4, share_expert_adapters=False, target_modules=TARGETS[kind], lora_B_init_method="normal"
    )
    for chunk in (single, grouped):
        section.install([chunk])
    torch.testing.assert_close(logits(grouped), logits(single), rtol=1e-4, atol=1e-4)
    disturb(single)
    (tmp_path / "adapted").mkdir()
    dist_checkpointing.save(single.sharded_state_dict(metadata=metadata), str(tmp_path / "adapted"))
    state = grouped.sharded_state_dict(metadata=metadata)
    grouped.load_state_dict(dist_checkpointing.load(state, str(tmp_path / "adapted")))
    torch.testing.assert_close(logits(grouped), logits(single), rtol=1e-4, atol=1e-4)


def names(chunk):
    return [name for name, _ in chunk.named_parameters() if ".adapter." in name]


def test_a_shared_pair_is_one_for_all_experts(tiny, groups):
    chunk = build({**tiny, **GROUPED}, groups)
    LoRA(dim=4, target_modules=["*.layers.1.mlp.experts.linear_fc2"]).install([chunk])
    stem = "decoder.layers.1.mlp.experts.linear_fc2.adapter.main"
    assert names(chunk) == [f"{stem}.lora_a", f"{stem}.lora_b"]
    with pytest.raises(PeftError, match=r"local_experts\.1\.linear_fc2 match no layer of this model"):
        LoRA(target_modules=["*.local_experts.1.linear_fc2"]).install([build({**tiny, **GROUPED}, groups)])


@pytest.mark.parametrize(
    "setting", ["moe_single_grouped_weight", "use_transformer_engine_op_fuser", "moe_mlp_glu_interleave_size"]
)
def test_layers_that_are_not_one_weight_for_each_expert_are_rejected(tiny, groups, setting):
    chunk = build({**tiny, **GROUPED}, groups)
    setattr(chunk.decoder.layers[0].mlp.experts.linear_fc1.config, setting, 2)
    with pytest.raises(PeftError, match=rf"experts\.linear_fc1 cannot have adapters with .*{setting}=2"):
        LoRA().install([chunk])


LAYOUTS = {
    "experts": {"expert_model_parallel_size": 2},
    "experts' tensors": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_tensor_parallel_size": 2,
    },
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    "section",
    [LoRA(dim=4), LoRA(dim=4, share_expert_adapters=False), DoRA(dim=4, normalize_moe_lora=True)],
    ids=["shared", "own", "dora"],
)
def test_training_does_not_depend_on_the_layout(pool, one_rank, tiny, tmp_path, groups, section, layout):
    """Gradients are clipped, so that their norm takes part. What two ranks saved loads into one."""
    settings = {**tiny, **GROUPED, "moe_router_topk": 2}
    (tmp_path / "start").mkdir()
    (tmp_path / "two").mkdir()
    chunk = build(settings, groups)
    section.install([chunk])
    disturb(chunk)
    dist_checkpointing.save(
        chunk.sharded_state_dict(metadata={"dp_cp_group": groups.dp_cp}), str(tmp_path / "start")
    )
    [(losses, wanted)] = one_rank.run(peft_ranks.trained_grouped, settings, str(tmp_path / "start"), section)
    split = pool.run(
        peft_ranks.trained_grouped,
        {**settings, **layout},
        str(tmp_path / "start"),
        section,
        str(tmp_path / "two"),
    )
    assert losses[2] < losses[0]
    for found, logits_found in split:
        assert found == pytest.approx(losses, rel=1e-4)
        torch.testing.assert_close(logits_found, wanted, rtol=1e-2, atol=1e-2)
    [(_, loaded)] = one_rank.run(
        peft_ranks.trained_grouped, settings, str(tmp_path / "two"), section, None, 0
    )
    torch.testing.assert_close(loaded, split[0][1], rtol=1e-4, atol=1e-4)
