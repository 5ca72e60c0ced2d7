"""Adapters on a small GPT in one process: trained parameters, results, merging, peft's format."""

import dataclasses
from types import SimpleNamespace

import mimo_ranks
import peft_ranks
import pytest
import torch
from megatron.core import dist_checkpointing
from tiny_training import prepare

from mb_host.megatron.layers import host_block_spec
from mb_models import GPTModelConfig, GPTModelProvider, MimoForwardStep, MimoModelProvider
from mb_models.errors import PeftError
from mb_models.hf.export import export_model
from mb_models.hf.save import save_hf_model
from mb_models.peft.adapter import Adapter
from mb_models.peft.config import PEFT, CanonicalLoRA, DoRA, LoRA, section_by_name
from mb_models.peft.hugging_face import save_adapters
from mb_models.peft.lora import init_magnitudes, merge

TOKENS = torch.arange(40).reshape(2, 20) * 7 % 96
KINDS = [LoRA, CanonicalLoRA, DoRA]
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"}

MIMO = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
"""Settings of `peft_ranks.adapters_on_this_rank` for a small MIMO model."""


def build(tiny, groups, **settings):
    config = GPTModelConfig(**{**tiny, **settings})
    [chunk] = GPTModelProvider(config, layer_spec=host_block_spec, device=torch.device("cpu")).provide_chunks(
        groups
    )
    return config, chunk


def logits(chunk):
    return chunk(TOKENS, torch.arange(20).expand(2, -1), None)


@torch.no_grad()
def disturb(chunk):
    """Give every adapter a non-zero effect."""
    generator = torch.Generator().manual_seed(0)
    for name, value in chunk.named_parameters():
        if ".adapter." in name:
            value.add_(0.1 * torch.randn(value.shape, generator=generator))


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_adapters_a_model_computes_what_it_did_before(tiny, groups, kind):
    _, model = build(tiny, groups)
    before = logits(model)
    peft = kind(dim=4)
    peft(model)
    disturb(model)
    trained = logits(model)
    with peft.disable_adapter([model]):
        torch.testing.assert_close(logits(model), before, rtol=0, atol=0)
    assert not torch.equal(trained, before)
    with pytest.raises(TypeError), peft.disable_adapter(model):
        model(None)
    torch.testing.assert_close(logits(model), trained, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("transform", "install"),
        ("freeze_model", "install"),
        ("adapter_key_filter", "is_adapter"),
        ("set_params_to_save", "is_adapter"),
    ],
)
def test_a_method_that_would_not_be_called_is_an_error(name, method):
    for base in (LoRA, PEFT)[: 2 if method == "is_adapter" else 1]:
        custom = type("Custom", (base,), {name: lambda self, *_: None})
        with pytest.raises(PeftError, match=rf"{name} would never be called, .* Override {method}\("):
            custom().install([])


def test_a_method_is_called_with_a_model_or_its_chunks(tiny, groups):
    """As Megatron-Bridge's; its `training=False` freezes the adapters, too."""
    lora = LoRA(dim=4)
    _, model = build(tiny, groups)
    assert lora(model) is model
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {
        name for name, _ in model.named_parameters() if lora.is_adapter(name)
    }
    assert model.training
    chunks = [build(tiny, groups)[1]]
    assert lora(chunks, training=False) is chunks
    assert any(lora.is_adapter(name) for name, _ in chunks[0].named_parameters())
    assert not any(value.requires_grad for value in chunks[0].parameters())
    assert not chunks[0].training


@pytest.mark.parametrize("settings", [{}, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_start_without_effect_are_trained_alone_and_merge_exactly(tiny, groups, kind, settings):
    _, chunk = build(tiny, groups, **settings)
    before = logits(chunk)
    section = kind(dim=4, lora_A_init_method="kaiming")
    section.install([chunk])
    assert torch.allclose(logits(chunk), before, atol=1e-6)
    logits(chunk).square().sum().backward()
    trained = {name for name, value in chunk.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in chunk.named_parameters() if section.is_adapter(name)}
    assert all(value.grad is not None for _, value in chunk.named_parameters() if value.requires_grad)
    disturb(chunk)
    with torch.no_grad():
        adapted = logits(chunk)
        merge([chunk])
        assert (adapted - before).abs().max() > 1e-3
        assert torch.allclose(logits(chunk), adapted, atol=1e-4)  # float32, weights at random
    assert not any(".adapter." in name for name, _ in chunk.named_parameters())


@pytest.mark.parametrize(
    ("method", "deviation"),
    [("kaiming", 1 / 3**0.5 / 64**0.5), ("xavier", (2 / (64 + 64)) ** 0.5), ("normal", 0.2), ("zero", 0.0)],
)
def test_factors_start_with_the_deviation_of_their_method(tiny, groups, method, deviation):
    _, chunk = build(tiny, groups)
    other = "kaiming" if method == "zero" else "zero"
    LoRA(dim=64, target_modules=["linear_proj"], lora_A_init_method=method, lora_B_init_method=other).install(
        [chunk]
    )
    factors = [
        value
        for name, value in chunk.named_parameters()
        if "linear_proj.adapter." in name and name.endswith("lora_a")
    ]
    assert [tuple(value.shape) for value in factors] == [(64, 64)] * len(factors)
    assert float(torch.stack(factors).std()) == pytest.approx(deviation, rel=0.1)
    others = [
        value
        for name, value in chunk.named_parameters()
        if "linear_proj.adapter." in name and name.endswith("lora_b")
    ]
    assert all(bool(value.any()) == (other != "zero") for value in others)


def test_the_second_factor_has_its_own_learning_rate(tiny, groups):
    _, chunk = build(tiny, groups)
    section = LoRA(dim=4, loraplus_lr_ratio=16.0)
    section.install([chunk])
    [(key, override)] = section.optimizer_overrides(lr=1e-3, min_lr=1e-4).items()
    assert override == {"max_lr": 1.6e-2, "min_lr": 1.6e-3}
    fast = [name for name, value in chunk.named_parameters() if key.matches(value, f"module.{name}")]
    assert fast == [name for name, _ in chunk.named_parameters() if name.endswith("lora_b")] != []
    assert section.optimizer_overrides(lr=1.0, min_lr=None)[key] == {"max_lr": 16.0}
    assert (
        LoRA().optimizer_overrides(lr=1e-3, min_lr=0.0)
        == PEFT().optimizer_overrides(lr=1.0, min_lr=0.0)
        == {}
    )


@pytest.mark.parametrize("position", ["pre", "post"])
def test_dropout_is_before_or_after_the_adapter(tiny, groups, position):
    _, chunk = build(tiny, groups)
    section = LoRA(
        dim=4,
        dropout=0.5,
        dropout_position=position,
        target_modules=["linear_proj"],
        lora_B_init_method="normal",
    )
    section.install([chunk])
    adapter = next(module for module in chunk.modules() if isinstance(module, Adapter))
    inputs = torch.ones(64, 2, 64)
    dropped = adapter.train()(inputs)
    assert bool((dropped == 0).any()) == (position == "post")
    complete = adapter.eval()(inputs)
    assert not bool((complete == 0).any())
    if position == "post":
        kept = dropped != 0
        assert torch.allclose(dropped[kept], 2 * complete[kept])
        assert 0.4 < float(kept.float().mean()) < 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_load_into_hugging_faces_peft(tiny, groups, kind, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config, chunk = build(tiny, groups, layernorm_epsilon=1e-6)
    save_hf_model(chunk, tmp_path / "base", config=config, pg_collection=groups)
    section = kind(dim=4, alpha=6.0)
    section.install([chunk])
    disturb(chunk)
    save_adapters(
        chunk, tmp_path / "adapters", section=section, config=config, pg_collection=groups, base="base"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapters").eval()
    with torch.no_grad():
        assert (theirs(TOKENS).logits - logits(chunk.eval())).abs().max() < 1e-5


@pytest.mark.parametrize("adapters_only", [False, True])
def test_an_export_merges_adapters_or_writes_them_alone(tiny, groups, tmp_path, adapters_only):
    section = LoRA(dim=4)
    config, trained = build(tiny, groups, layernorm_epsilon=1e-6)
    section.install([trained])
    disturb(trained)
    stored = trained.state_dict()
    _, chunk = build(tiny, groups, layernorm_epsilon=1e-6)
    export_model(
        chunk,
        tmp_path / "out",
        section=config,
        load=lambda _is_adapter: chunk.load_state_dict(stored),
        pg_collection=groups,
        peft=section,
        adapters_only=adapters_only,
    )
    if adapters_only:
        options = {"section": section, "config": config, "pg_collection": groups}
        save_adapters(trained, tmp_path / "expected", **options)
    else:
        merge([trained])
        save_hf_model(trained, tmp_path / "expected", config=config, pg_collection=groups)
    written, expected = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("out", "expected")
    )
    assert written == expected
    assert ("adapter_config.json" in written) == adapters_only


def test_dora_starts_from_the_norms_of_the_loaded_weights(tiny, groups):
    _, chunk = build(tiny, groups)
    DoRA(dim=2).install([chunk])
    with torch.no_grad():
        for name, value in chunk.named_parameters():
            if name.endswith("linear_fc1.weight"):
                value.mul_(3)
    before = chunk.decoder.layers[0].mlp.linear_fc1.adapter.magnitude.clone()
    init_magnitudes([chunk])
    assert torch.allclose(chunk.decoder.layers[0].mlp.linear_fc1.adapter.magnitude, 3 * before)


RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def test_adapters_are_trained_under_full_recompute(tiny, groups):
    _, chunk = build(tiny, groups, **RECOMPUTE)
    LoRA(dim=2, dropout=0.1).install([chunk.train()])
    logits(chunk).square().sum().backward()
    assert all(value.grad is not None for _, value in chunk.named_parameters() if value.requires_grad)


@pytest.mark.parametrize(
    "targets", [["linear_qkv"], ["language_model.*.linear_qkv"]], ids=["both", "language"]
)
def test_adapters_of_a_mimo_model_are_trained_under_full_recompute(groups, targets):
    section = dataclasses.replace(mimo_ranks.SECTION, **RECOMPUTE)
    [chunk] = MimoModelProvider(
        section, layer_spec=host_block_spec, device=torch.device("cpu")
    ).provide_chunks(groups)
    LoRA(dim=2, target_modules=targets).install([chunk.train()])
    output, loss = MimoForwardStep()(mimo_ranks.batches(), chunk)
    loss(output)[0].backward()
    trained = [value for value in chunk.parameters() if value.requires_grad]
    assert trained
    assert all(value.grad is not None for value in trained)


@pytest.mark.parametrize("settings", [{}, {"share_embeddings_and_output_weights": True}], ids=["own", "tied"])
def test_an_output_layer_with_the_embeddings_weight_has_no_adapters(tiny, groups, settings):
    """On one stage it has no weight of its own, and on the last of several a copy."""
    config = GPTModelConfig(**{**tiny, **settings})
    [chunk] = GPTModelProvider(config, layer_spec=host_block_spec, device=torch.device("cpu")).provide_chunks(
        groups
    )
    if settings:
        chunk.output_layer.weight = torch.nn.Parameter(torch.ones(96, 64))
        with pytest.raises(PeftError, match="output_layer match no layer"):
            LoRA(target_modules=["output_layer"]).install([chunk])
    LoRA(dim=2, target_modules=[], exclude_modules=["linear_fc1"]).install([chunk])
    assert hasattr(chunk.output_layer, "adapter") is not bool(settings)


def test_canonical_lora_needs_complete_query_groups_on_a_rank(tiny, groups):
    _, chunk = build(tiny, groups)
    for layer in chunk.decoder.layers:
        layer.self_attention.linear_qkv.tp_group = SimpleNamespace(size=lambda: 4)
    message = (
        "no separate keys and values on a rank .model.num_query_groups=2, model.tensor_model_parallel_size=4"
    )
    with pytest.raises(PeftError, match=message):
        CanonicalLoRA(target_modules=["linear_q"]).install([chunk])


def test_experts_may_have_a_lower_rank(tiny, groups):
    """As Megatron-Bridge's: dim // moe_router_topk of routed experts, and the scale is alpha divided by that rank."""
    shared = {"moe_shared_expert_intermediate_size": 24, "moe_router_topk": 2}
    _, chunk = build(tiny, groups, **EXPERTS, **shared)
    LoRA(dim=8, alpha=16, normalize_moe_lora=True).install([chunk])
    found = {
        (".local_experts." in name, module.lora_a.shape[0], module.lora_b.shape[1], module.scale)
        for name, module in chunk.named_modules()
        if isinstance(module, Adapter)
    }
    assert found == {(True, 4, 4, 4.0), (False, 8, 8, 2.0)}
    with pytest.raises(PeftError, match=r"peft.dim: 7 is not a multiple of model.moe_router_topk=2"):
        LoRA(dim=7, normalize_moe_lora=True).install([build(tiny, groups, **EXPERTS, **shared)[1]])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (LoRA(dim=0), "peft.dim: must be 1 or more, is 0"),
        (
            LoRA(target_modules=["linear_qkvv", "linear_proj"]),
            "linear_qkvv match no layer of this model. Layers that can have adapters: linear_qkv, ",
        ),
        (LoRA(target_modules=["linear_q"]), "linear_q match no layer.*: linear_qkv, "),
        (LoRA(target_modules=["*.layers.2.*"]), r"\*.layers.2.\* match no layer"),
        (LoRA(target_modules=["*.layers.0.*.linear_pro"]), "pro match no layer.*adapters: linear_proj, "),
        (
            CanonicalLoRA(target_modules=["linear_q", "linear_fc1_upp"]),
            "upp match no layer.*: linear_fc1_up, ",
        ),
        (LoRA(target_modules=[], exclude_modules=["linear_qk"]), "peft.exclude_modules: linear_qk match no"),
        (LoRA(target_modules=["core_attention"]), "adapters support Megatron's linear layers"),
    ],
)
def test_unsupported_targets_are_rejected(tiny, groups, section, message):
    _, chunk = build(tiny, groups)
    with pytest.raises(PeftError, match=message):
        section.install([chunk])
    assert all(value.requires_grad for value in chunk.parameters())


PARTS = {
    "linear_q": ("linear_qkv", "q"),
    "linear_k": ("linear_qkv", "k"),
    "linear_v": ("linear_qkv", "v"),
    "linear_proj": ("linear_proj", "main"),
    "linear_fc1_up": ("linear_fc1", "up"),
    "linear_fc1_gate": ("linear_fc1", "gate"),
    "linear_fc2": ("linear_fc2", "main"),
}
"""Names of Megatron-Bridge's canonical LoRA -> layer and adapter."""


def adapters(chunk):
    """Return the number of the layer, the layer's name and the adapter, for each."""
    return {
        (int(name.split(".")[2]), *(name.split(".")[place] for place in (4, 6)))
        for name, _ in chunk.named_parameters()
        if name.endswith("lora_a")
    }


def test_canonical_lora_adapts_every_kind_of_its_default_list(tiny, groups):
    _, chunk = build(tiny, groups)
    section = CanonicalLoRA(dim=2)
    assert section.target_modules == [*PARTS]
    section.install([chunk])
    assert adapters(chunk) == {(layer, *PARTS[name]) for layer in (0, 1) for name in PARTS}


@pytest.mark.parametrize(
    "names", [["linear_q"], ["linear_v", "linear_fc1_gate"], ["linear_k", "linear_q", "linear_proj"]]
)
def test_parts_of_a_fused_layer_are_adapted_separately_and_merge_exactly(tiny, groups, names):
    _, chunk = build(tiny, groups)
    CanonicalLoRA(dim=4, target_modules=names).install([chunk])
    assert adapters(chunk) == {(layer, *PARTS[name]) for layer in (0, 1) for name in names}
    before = {name: value.clone() for name, value in chunk.named_parameters()}
    disturb(chunk)
    with torch.no_grad():
        adapted = logits(chunk)
        merge([chunk])
        assert torch.allclose(logits(chunk), adapted, atol=1e-4)  # float32, weights at random
    for name, value in chunk.named_parameters():
        wanted = name.endswith("weight") and any(PARTS[each][0] in name for each in names)
        assert torch.equal(value, before[name]) != wanted, name


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        (LoRA(dim=2, target_modules=["*.layers.1.*.linear_proj"]), {(1, "linear_proj", "main")}),
        (
            LoRA(dim=2, target_modules=["*.layers.0.mlp.*"]),
            {(0, "linear_fc1", "main"), (0, "linear_fc2", "main")},
        ),
        (CanonicalLoRA(dim=2, target_modules=["*.layers.0.*.linear_v"]), {(0, "linear_qkv", "v")}),
        (
            LoRA(
                dim=2,
                target_modules=[],
                exclude_modules=["linear_fc*", "*.layers.0.*", "output_layer", "*.mlp.*"],
            ),
            {(1, "linear_proj", "main"), (1, "linear_qkv", "main")},
        ),
    ],
    ids=["one layer", "part of a layer", "part of a fused one", "all but some"],
)
def test_patterns_select_by_the_full_name(tiny, groups, section, wanted):
    _, chunk = build(tiny, groups)
    if section.exclude_modules:
        section.exclude_modules.remove("linear_fc*")
    section.install([chunk])
    assert adapters(chunk) == wanted


@pytest.mark.parametrize("kind", [LoRA, DoRA])
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("*.layers.1.*.linear_fc1", {}),
        ("linear_fc1", {}),
        ("*.local_experts.2.*", EXPERTS),
        ("*.layers.1.*.linear_fc2", EXPERTS),
    ],
)
def test_adapters_on_some_layers_are_saved_and_loaded(tiny, groups, tmp_path, kind, target, settings):
    chunks = [build(tiny, groups, **settings)[1] for _ in range(2)]
    for chunk in chunks:
        kind(dim=2, target_modules=[target]).install([chunk])
    disturb(chunks[0])
    dist_checkpointing.save(chunks[0].sharded_state_dict(), str(tmp_path))
    chunks[1].load_state_dict(dist_checkpointing.load(chunks[1].sharded_state_dict(), str(tmp_path)))
    wanted = dict(chunks[0].named_parameters())
    assert all(torch.equal(value, wanted[name]) for name, value in chunks[1].named_parameters())


def test_a_pattern_may_match_on_a_single_pipeline_stage_by_the_number_in_the_complete_model(pool, tiny):
    stages = pool.run(peft_ranks.adapters_on_this_stage, tiny, ["*.layers.1.*.linear_proj"])
    assert stages == [[], ["decoder.layers.0.self_attention.linear_proj.adapter.main.lora_a"]]


def test_a_pattern_without_a_match_is_the_same_error_on_every_rank(pool, tiny):
    first, second = pool.run(peft_ranks.adapters_on_this_stage, tiny, ["linear_proj", "linear_fc3"])
    assert first == second
    assert "peft.target_modules: linear_fc3 match no layer" in first


SPREAD = {**EXPERTS, "expert_model_parallel_size": 2}
FIRST = "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.adapter.main.lora_a"


@pytest.mark.parametrize(
    ("expert", "wanted"),
    [("3", [[], [FIRST.format(0, 1)]]), ("0", [[FIRST.format(0, 0)], []])],
    ids=["of the second rank", "of the first rank"],
)
def test_an_expert_has_its_number_in_the_complete_model_and_may_be_adapted_alone(
    pool, tiny, tmp_path, expert, wanted
):
    pattern = f"*.layers.0.*.local_experts.{expert}.linear_fc1"
    settings = {**tiny, **SPREAD}
    assert pool.run(peft_ranks.adapters_on_this_rank, settings, [pattern], str(tmp_path)) == wanted


def test_adapters_of_experts_that_ranks_share_are_saved_and_loaded(pool, tiny, tmp_path):
    parallel = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 2}
    settings = {**tiny, **EXPERTS, **parallel}
    first, second = pool.run(
        peft_ranks.adapters_on_this_rank, settings, ["linear_fc1", "linear_fc2"], str(tmp_path)
    )
    assert first == second
    assert FIRST.format(1, 3) in first


def test_adapters_of_different_experts_start_unequal_and_replicas_equal(pool, tiny):
    """Only the first rank adapts an expert, so that only there its generators could advance."""
    settings = {**tiny, **SPREAD}
    experts = pool.run(peft_ranks.adapters_with_parallel_experts, settings, ["linear_fc1"])
    starts = [str(values) for rank in experts for values in rank.values()]
    assert len(starts) == len(set(starts)) == 8
    targets = ["*.local_experts.0.linear_fc1", "linear_qkv"]
    first, second = pool.run(peft_ranks.adapters_with_parallel_experts, settings, targets)
    assert len(first) == 4
    assert second == {name: values for name, values in first.items() if name.endswith("linear_qkv")}


def test_the_bias_of_routers_is_not_trained_with_adapters(tiny, groups):
    """Checkpoints hold adapters alone, so that a resumed run would begin with the bias of the base model."""
    settings = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    config = GPTModelConfig(**{**tiny, **EXPERTS, **settings})
    provider = GPTModelProvider(config, layer_spec=host_block_spec, device=torch.device("cpu"))
    chunks = provider.provide_chunks(groups)
    LoRA(dim=2).install(chunks)
    training = prepare(provider, chunks, groups)
    batch = {
        "tokens": TOKENS,
        "labels": TOKENS,
        "loss_mask": torch.ones(TOKENS.shape),
        "position_ids": torch.arange(20).expand(2, -1),
    }
    training.step(lambda: iter([batch]), micro_batches=1, micro_batch_size=2)
    biases = [value for name, value in chunks[0].named_buffers() if name.endswith("expert_bias")]
    assert len(biases) == 2
    assert not any(value.any() for value in biases)


VISION = "modality_submodules.vision.encoders.patches.decoder.layers.0.self_attention.linear_proj"


@pytest.mark.parametrize(
    ("settings", "pattern", "wrong"),
    [
        (SPREAD, "*.local_experts.2.linear_fc1", "*.local_experts.4.linear_fc1"),
        (MIMO, "*.vision.*.linear_proj", "*.audio.*.linear_proj"),
    ],
    ids=["experts", "mimo"],
)
def test_each_pattern_must_match_on_some_rank(pool, tiny, settings, pattern, wrong):
    whole = {**tiny, **settings} if settings is SPREAD else settings
    first, second = pool.run(peft_ranks.adapters_on_this_rank, whole, [pattern, wrong])
    assert first == second
    assert f"peft.target_modules: {wrong} match no layer of this model. Layers" in first
    found = pool.run(peft_ranks.adapters_on_this_rank, whole, [pattern])
    assert found == (
        [[f"{VISION}.adapter.main.lora_a"]] * 2
        if settings is MIMO
        else [[], [FIRST.format(0, 0), FIRST.format(1, 0)]]
    )


def test_the_default_list_may_lack_a_layer_of_another_architecture(tiny, groups, caplog):
    _, chunk = build(tiny, groups, gated_linear_unit=False)
    CanonicalLoRA(dim=2).install([chunk])
    assert {(name, part) for _, name, part in adapters(chunk)} == {
        *(PARTS[name] for name in PARTS if "fc1" not in name),
        ("linear_fc1", "main"),
    }


def test_sections_by_name():
    assert [section_by_name(name) for name in ("lora", "canonical_lora", "dora")] == [
        LoRA(),
        CanonicalLoRA(),
        DoRA(),
    ]
    with pytest.raises(PeftError, match="'ia3' is none of lora, canonical_lora, dora"):
        section_by_name("ia3")


def test_a_custom_class_requires_a_transform():
    with pytest.raises(
        PeftError, match=r"PEFT has no transform, .* Define transform\(self, module, name, prefix\)"
    ):
        PEFT().install([])
