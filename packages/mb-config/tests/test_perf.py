"""Fast settings that `perf` selects."""

from dataclasses import dataclass, field

import pytest

from mb_config import Provenance, runtime_config_update
from mb_config.perf.candidates import tunable
from mb_config.perf.names import GPUS, PerfName, gpu_of, read_name
from mb_config.perf.resolve_perf import perf_target
from mb_config.perf.settings import MODEL, RUN, VARIABLES
from mb_config.preflight.run import preflight
from mb_config.resolve.resolver import apply_perf

H100 = {"gpu": "h100", "world_size": 8, "transformer_engine": True, "env": {}}
CPU = {"cpu": True, "world_size": 1, "env": {}}


@pytest.fixture
def make_fast(make, kinds):
    @dataclass(kw_only=True)
    class Model(kinds["Model"]):
        """Fields that the table of settings reads or writes."""

        hidden_size: int = 4096
        ffn_hidden_size: int = 16384
        vocab_size: int = 32000
        sequence_parallel: bool = False
        position_embedding_type: str = "rope"
        multi_latent_attention: bool = False
        activation_func: str = "silu"
        gated_linear_unit: bool = True
        add_bias_linear: bool = False
        deterministic_mode: bool = False
        calculate_per_token_loss: bool = False
        transformer_impl: str = "transformer_engine"
        gradient_accumulation_fusion: bool = False
        cross_entropy_loss_fusion: bool = False
        cross_entropy_fusion_impl: str = "native"
        apply_rope_fusion: bool = False
        bias_activation_fusion: bool = False
        bias_dropout_fusion: bool = False
        deallocate_pipeline_outputs: bool = False
        num_moe_experts: int | None = None
        moe_grouped_gemm: bool = False
        moe_permute_fusion: bool = False
        moe_token_dispatcher_type: str = "allgather"
        hybrid_layer_pattern: str | None = None
        mtp_num_layers: int | None = None
        cuda_graph_impl: str = "none"
        cuda_graph_modules: str | list[str] = "full"
        recompute_granularity: str | None = None
        recompute_method: str | None = None
        recompute_num_layers: int | None = None
        recompute_modules: list[str] = field(default_factory=list)

    def build(*, perf, **model):
        return make(perf=perf, model=Model(**model))

    return build


def changed(config, **facts):
    """Return the fast settings by path."""
    provenance = facts.pop("provenance", None)
    return {
        change.field: change.new
        for change in apply_perf(config, facts={**H100, **facts}, provenance=provenance)
    }


def test_a_dense_model_on_hopper(make_fast):
    assert changed(make_fast(perf="h100")) == {
        "mixed_precision": "bf16_mixed",
        "model.gradient_accumulation_fusion": True,
        "model.cross_entropy_loss_fusion": True,
        "model.cross_entropy_fusion_impl": "te",
        "model.apply_rope_fusion": True,
        "model.bias_activation_fusion": True,
        "model.bias_dropout_fusion": True,
        "model.cuda_graph_impl": "full_iteration",
        "model.use_te_rng_tracker": True,
        "rng.te_rng_tracker": True,
        "ddp.use_distributed_optimizer": True,
        "optimizer.use_distributed_optimizer": True,
        "optimizer.use_precision_aware_optimizer": True,
        "ddp.average_in_collective": True,
        "train.manual_gc": True,
        "train.manual_gc_interval": 100,
        "env_vars.TORCH_NCCL_HIGH_PRIORITY": 1,
        "env_vars.NCCL_NVLS_ENABLE": 0,
        "env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN": 20,
        "env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN": 20,
    }


@pytest.mark.parametrize("weights", [None, "runs/imported/checkpoints"])
def test_gelu_of_given_weights_is_not_approximated(make_fast, weights):
    config = make_fast(perf="h100", activation_func="gelu", gated_linear_unit=False, add_bias_linear=True)
    config.checkpoint = {"pretrained_checkpoint": weights}
    assert ("model.bias_activation_fusion" in changed(config)) is (weights is None)


def test_experts_with_biases_have_no_fused_activation(make_fast):
    assert "model.bias_activation_fusion" in changed(make_fast(perf="h100", num_moe_experts=8))
    biased = make_fast(perf="h100", num_moe_experts=8, add_bias_linear=True)
    assert "model.bias_activation_fusion" not in changed(biased)


def test_a_value_of_the_user_is_kept(make_fast):
    config = make_fast(perf="h100")
    config.optimizer.use_precision_aware_optimizer = False
    config.train.manual_gc_interval = 7
    found = changed(config)
    assert not {"optimizer.use_precision_aware_optimizer", "train.manual_gc_interval"} & found.keys()
    assert (config.optimizer.use_precision_aware_optimizer, config.train.manual_gc_interval) == (False, 7)


def test_a_value_of_a_recipe_is_replaced(make_fast):
    config = make_fast(perf="h100", cross_entropy_fusion_impl="native")
    provenance = Provenance({"model.cross_entropy_fusion_impl": "recipe mine"})
    assert changed(config, provenance=provenance)["model.cross_entropy_fusion_impl"] == "te"
    assert provenance.origin("model.cross_entropy_fusion_impl") == (
        "resolve: perf=h100: Transformer Engine computes the loss in place, without a copy of the logits"
    )


def test_variables_of_the_shell_and_of_the_section_are_kept(make_fast):
    config = make_fast(perf="h100", tensor_model_parallel_size=2)
    config.env_vars["NCCL_NVLS_ENABLE"] = 1
    found = changed(config, env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert not {"env_vars.NCCL_NVLS_ENABLE", "env_vars.CUDA_DEVICE_MAX_CONNECTIONS"} & found.keys()


def test_applying_twice_changes_nothing(make_fast):
    config, provenance = make_fast(perf="h100"), Provenance()
    assert changed(config, provenance=provenance)
    assert changed(config, provenance=provenance) == {}


def test_a_replaced_value_is_not_set_again_by_the_resolver(make_fast):
    config, provenance = make_fast(perf="h100"), Provenance()
    changed(config, provenance=provenance)
    config.model.gradient_accumulation_fusion = False  # as a fallback does
    provenance.note("model.gradient_accumulation_fusion", "resolve: KN04")
    runtime_config_update(config, world_size=8, provenance=provenance, facts=H100, rules=())
    assert config.model.gradient_accumulation_fusion is False


@pytest.mark.parametrize(
    ("perf", "precision"),
    [
        ("h100_fp8", "bf16_with_fp8_current_scaling_mixed"),
        ("b200_fp8", "bf16_with_mxfp8_mixed"),
        ("gb200_nvfp4", "bf16_with_nvfp4_mixed"),
    ],
)
def test_the_precision_of_each_generation(make_fast, perf, precision):
    found = changed(make_fast(perf=perf), gpu=perf.partition("_")[0])
    assert (found["mixed_precision"], found["env_vars.NVTE_NORM_FWD_USE_CUDNN"]) == (precision, 1)


@pytest.mark.parametrize(
    ("gpu", "model", "graphs"),
    [
        ("h100", {}, ("full_iteration", None)),
        ("h100", {"hidden_size": 1024}, ("full_iteration", None)),
        ("h100", {"hidden_size": 1024, "pipeline_model_parallel_size": 2}, ("transformer_engine", None)),
        ("h100", {"hidden_size": 1024, "cuda_graph_modules": ["attn"]}, ("transformer_engine", None)),
        ("h100", {"recompute_granularity": "selective"}, (None, None)),
        ("h100", {"fp16": True}, (None, None)),
        ("a100", {}, (None, None)),
        ("b200", {}, ("full_iteration", None)),
        ("b200", {"pipeline_model_parallel_size": 2}, (None, None)),
        ("b200", {"num_moe_experts": 8}, ("transformer_engine", ["attn", "moe_router", "moe_preprocess"])),
        ("h100", {"num_moe_experts": 8}, (None, None)),
        ("h100", {"hybrid_layer_pattern": "M*"}, ("transformer_engine", ["mamba"])),
        ("b200", {"hybrid_layer_pattern": "M*"}, ("transformer_engine", ["mamba", "attn"])),
        ("b200", {"transformer_impl": "local"}, (None, None)),
    ],
)
def test_graphs_by_generation_and_kind_of_model(make_fast, gpu, model, graphs):
    found = changed(make_fast(perf=gpu, **model), gpu=gpu)
    assert (found.get("model.cuda_graph_impl"), found.get("model.cuda_graph_modules")) == graphs
    assert found.get("model.use_te_rng_tracker", False) is (graphs[0] is not None)
    assert not any("check_for" in path for path in found)  # the check of the loss is kept


@pytest.mark.parametrize("check", [{"check_for_nan_in_grad": True}, {"check_for_large_grads": True}], ids=str)
def test_a_gradient_that_is_read_at_once_is_an_obstacle_to_a_graph_of_the_whole_step(make_fast, check):
    config = make_fast(perf="h100")
    for name, value in check.items():
        setattr(config.ddp, name, value)
    assert "model.cuda_graph_impl" not in changed(config)


def test_experts_use_grouped_products_and_exchange_their_tokens(make_fast):
    found = changed(make_fast(perf="h100", num_moe_experts=8))
    assert found["model.moe_grouped_gemm"]
    assert found["model.moe_permute_fusion"]
    assert found["model.moe_token_dispatcher_type"] == "alltoall"


@pytest.mark.parametrize(("need", "recompute"), [(67 * 2**30, None), (68 * 2**30, "full"), (None, "full")])
def test_recomputation_of_a_recipe_ends_if_the_plan_has_room(make_fast, monkeypatch, need, recompute):
    """85 % of 79.1 GiB are 67.2."""

    def planned(self, facts, *, saves):
        assert not saves
        assert (self.model.recompute_granularity, facts["gpu"]) == (None, "h100")
        return {} if need is None else {"memory_of_tensors": need, "memory_of_gpu": int(79.1 * 2**30)}

    config = make_fast(
        perf="h100",
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
    )
    monkeypatch.setattr(type(config), "planned_facts", planned)
    recipe = ("granularity", "method", "num_layers")
    provenance = Provenance({f"model.recompute_{name}": "recipe mine" for name in recipe})
    changed(config, provenance=provenance, world_size=4)
    assert config.model.recompute_granularity == recompute


def test_nothing_is_set_without_a_gpu(make_fast):
    config = make_fast(perf="h100")
    assert apply_perf(config, facts=CPU) == []
    assert config.model.gradient_accumulation_fusion is False


@pytest.mark.parametrize(
    ("perf", "facts", "ids"),
    [
        ("h10", H100, ["PF01"]),
        ("h100_fp16", H100, ["PF01"]),
        ("h100_nvfp4", H100, ["PF02"]),
        ("b200", H100, ["PF03"]),
        ("auto", CPU, ["PF04"]),
        ("auto", {**H100, "gpu": "v100"}, ["PF03"]),
        ("auto_fp8", H100, []),
        (None, CPU, []),
    ],
)
def test_rules(make_fast, perf, facts, ids):
    result = preflight(make_fast(perf=perf, bf16=True), facts=facts)
    assert [problem.id for problem in result.problems if problem.id.startswith("PF")] == ids


def test_auto_is_the_gpu_of_the_machine():
    assert read_name("auto_fp8") == PerfName("auto", "fp8")
    assert gpu_of(PerfName("auto", ""), "NVIDIA H100 80GB HBM3") == "h100"
    assert gpu_of(PerfName("auto", ""), None) is None


def test_every_gpu_of_the_table_has_a_target(make_fast):
    config = make_fast(perf=None)
    for gpu in GPUS:
        config.perf = gpu
        assert perf_target(config, H100).gpu == gpu


def test_every_setting_has_a_reason():
    assert all(setting.why for setting in (*MODEL, *RUN, *VARIABLES))


def alternatives(config, **facts):
    known = {**H100, **facts}
    return [*tunable(config, target=perf_target(config, known), cpus=4, replicas=2)]


def test_what_is_tuned_divides_the_batch_and_fits_the_model(make_fast):
    config = make_fast(perf="h100", cuda_graph_impl="full_iteration")
    config.train.micro_batch_size, config.train.global_batch_size = 2, 24
    found = alternatives(config)
    # 12 of each replica; one larger and one smaller microbatch divide them
    assert found[:2] == [(("train.micro_batch_size=4",),), (("train.micro_batch_size=1",),)]
    assert [chain[0][0] for chain in found[2:4]] == [
        "model.cuda_graph_impl=none",
        "model.cuda_graph_impl=transformer_engine",
    ]
    assert (("model.fused_residual_rmsnorm=true",),) not in found  # this model has LayerNorm


def test_without_a_gpu_only_batches_and_workers_are_tuned(make_fast):
    config = make_fast(perf=None)
    config.train.micro_batch_size, config.train.global_batch_size = 1, 8
    overrides = [override for chain in alternatives(config, cpu=True) for each in chain for override in each]
    assert {each.partition("=")[0] for each in overrides} <= {"train.micro_batch_size", "dataset.num_workers"}


BELONGS = [
    ("h100", {"hidden_size": 1024}, "model.cuda_graph_impl", "none", ["model.cuda_graph", "te_rng_tracker"]),
    ("h100", {"hidden_size": 1024}, "rng.te_rng_tracker", False, ["model.cuda_graph", "te_rng_tracker"]),
    ("h100", {}, "model.use_te_rng_tracker", False, ["model.cuda_graph", "te_rng_tracker"]),
    (
        "b200",
        {},
        "model.cuda_graph_impl",
        "none",
        ["model.cuda_graph", "te_rng_tracker", "check_for_nan_in_loss"],
    ),
    ("h100", {}, "model.cross_entropy_loss_fusion", False, ["cross_entropy"]),
    ("h100", {}, "ddp.use_distributed_optimizer", False, ["distributed_optimizer", "precision_aware"]),
    ("h100", {}, "optimizer.use_distributed_optimizer", False, ["distributed_optimizer", "precision_aware"]),
    ("h100", {}, "train.manual_gc", False, ["manual_gc"]),
    ("h100", {}, "model.bf16", False, ["mixed_precision", "precision_aware"]),
    ("h100_fp8", {}, "mixed_precision", "bf16_mixed", ["mixed_precision", "USE_CUDNN"]),
]
"""Value of `perf`, model, a field that the user sets, and parts of the paths that must stay as they are."""


@pytest.mark.parametrize(
    ("perf", "model", "path", "value", "untouched"), BELONGS, ids=lambda item: str(item)[:30]
)
def test_nothing_is_taken_that_belongs_to_a_setting_that_the_user_turned_off(
    make_fast, perf, model, path, value, untouched
):
    def touched(config, **origins):
        found = changed(config, gpu=perf.partition("_")[0], provenance=Provenance(origins))
        return [field for field in found if any(part in field for part in untouched)]

    config = make_fast(perf=perf, **model)
    section, _, name = path.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    assert touched(make_fast(perf=perf, **model))
    assert touched(config, **{path: "command line"}) == []


def test_modules_of_the_user_are_captured(make_fast):
    config = make_fast(perf="h100", hidden_size=1024)
    config.model.cuda_graph_modules = ["attn"]
    assert changed(config)["model.cuda_graph_impl"] == "transformer_engine"
    assert config.model.cuda_graph_modules == ["attn"]
