"""Predicted time of a step: its fit to published runs, and its behaviour."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mb_plan import PlanError, make_plan, read_shape
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import WAITING, _settings, predict, predicted_speed
from mb_plan.time.step import PRODUCTS, TERMS, StepSettings, coefficients_of, fitted, step_seconds, step_terms

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fit_step_time.py"
MODEL = {
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "gated_linear_unit": True,
    "vocab_size": 128_256,
}
IMAGES = {
    "vision_num_layers": 2,
    "vision_hidden_size": 64,
    "vision_num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 16,
}
EXPERTS = {**MODEL, "num_moe_experts": 64, "moe_router_topk": 8, "moe_ffn_hidden_size": 1024}
H100 = StepSettings(
    gpu=GPU_SPEEDS["h100"],
    precision="bf16",
    seq_length=8192,
    micro_batch_size=1,
    microbatches=8,
    replicas=1,
)


def terms(model=MODEL, **settings):
    """Return the terms of a step on H100s."""
    return step_terms(read_shape(model), replace(H100, **settings)).total


def seconds(model=MODEL, **settings):
    """Return the predicted time of a step on H100s."""
    return step_seconds(step_terms(read_shape(model), replace(H100, **settings)), coefficients_of("h100"))


@pytest.fixture(scope="module")
def script():
    """Return the module of the fit script."""
    spec = importlib.util.spec_from_file_location("fit_step_time", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_fit_is_that_of_the_script(script):
    assert script.result()[0] == fitted()


def test_runs_of_unseen_models_are_predicted_within_the_bounds():
    errors = fitted()["errors"]["model_left_out"]
    assert errors["median"] <= 0.07
    assert errors["within_25_percent"] >= 0.89
    assert (fitted()["runs"], fitted()["fitted_runs"]) == (257, 156)


def test_runs_that_are_kept_back_do_not_change_the_fit(script):
    rows = [script.row_of(run) for run in script.published_runs()]
    assert script.fit(rows) == script.fit([row for row in rows if row.fitted])


@pytest.mark.parametrize("left_out", ["model", "release", "gpu"])
def test_the_range_holds_nine_of_ten_runs_that_neither_it_nor_the_fit_has_seen(left_out):
    assert fitted()["in_range"][left_out] >= 0.9


def test_a_range_of_nine_of_ten_is_that_of_sorted_errors(script):
    errors = [1 / ratio - 1 for ratio in range(1, 101)]
    assert script.throughput_range(errors, 0.05) == pytest.approx((5, 96))


def test_the_time_of_products_on_a_gpu_is_within_the_data_sheet(script):
    """A product takes at least the time of the data sheet's peak."""
    for gpu, factor in fitted()["gpu_factors"].items():
        assert script.GPU_FACTOR[0] < factor < script.GPU_FACTOR[2]
        assert all(coefficients_of(gpu)[name] > 1 for name in PRODUCTS)
    assert coefficients_of("h200") == fitted()["coefficients"]


def test_the_printed_table_is_that_of_the_documentation(script):
    page = (Path(__file__).parents[3] / "meta" / "docs" / "packages" / "mb-plan.md").read_text()
    assert script.markdown(fitted()) in page


def test_the_error_is_that_of_the_runs_on_the_gpu_in_the_precision_or_of_other_gpus(script):
    sections, plan = run(fp8="hybrid")
    known = [each for each in script.published_runs() if each.group == ("h100", "fp8", "dense")]
    error = predict(sections, plan, gpu="h100").error
    assert (error.runs, error.of, error.left_out) == (len(known), "h100 in fp8, dense", "model")
    assert error.never_fitted == sum(not each.fitted for each in script.published_runs())
    other = predict(sections, plan, gpu="h200")
    assert (other.error.runs, other.error.left_out) == (fitted()["runs"], "gpu")
    speed = other.tokens_per_second_per_gpu
    assert other.likely == pytest.approx([bound * speed for bound in fitted()["unseen_range"]])


def test_there_are_at_most_thirteen_coefficients_and_each_is_within_its_bounds(script):
    coefficients = fitted()["coefficients"]
    assert list(coefficients) == list(TERMS) == list(script.EXPECTED)
    assert len(coefficients) <= 13
    for name, (low, _, high) in script.EXPECTED.items():
        assert low <= coefficients[name] <= high


def test_models_that_are_left_out_have_a_reason(script):
    data = script.published_data()
    named = {row["model"] for row in data["runs"]}
    assert named == data["models"].keys() | data["left_out"].keys()
    assert all(data["left_out"].values())


def test_one_gpu_communicates_nothing():
    found = terms()
    assert found["tensor"] == found["routing"] == found["gradients"] == 0


@pytest.mark.parametrize(
    ("layout", "term"),
    [
        ({"tensor_model_parallel_size": 2}, "tensor"),
        ({"context_parallel_size": 2}, "tensor"),
        ({"pipeline_model_parallel_size": 2}, "gradients"),
    ],
)
def test_each_kind_of_parallelism_has_its_communication(layout, term):
    assert terms({**MODEL, **layout})[term] > 0


def test_experts_on_several_ranks_exchange_tokens_faster_within_nvlink():
    inside = terms({**EXPERTS, "expert_model_parallel_size": 8}, replicas=8)
    across = terms({**EXPERTS, "expert_model_parallel_size": 16}, replicas=16)
    assert 0 < inside["routing"] < across["routing"]
    assert terms(EXPERTS)["routing"] == 0


@pytest.mark.parametrize(
    "slower",
    [
        {"seq_length": 16384},
        {"micro_batch_size": 2},
        {"microbatches": 16},
        {"recomputed_layers": 1.0},
        {"sharded_optimizer": False, "replicas": 8},
        {"recomputed": ("mlp", "layernorm", "core_attn")},
        {"gpu": GPU_SPEEDS["a100"]},
    ],
)
def test_what_makes_a_step_slower(slower):
    assert seconds(**slower) > seconds()


@pytest.mark.parametrize(
    "faster",
    [
        {"precision": "fp8"},
        {"precision": "fp8", "bf16_layers": (1, 1)},
        {"graphs": ("attn", "mlp")},
        {"graphs": "step"},
        {"gpu": GPU_SPEEDS["h200"]},
        {"frozen": True},
    ],
)
def test_what_makes_a_step_faster(faster):
    assert seconds(**faster) < seconds()


def test_layers_in_bf16_take_the_time_of_bf16():
    """Of 32 layers, all products with weights but the output layer's are in BF16 or FP8."""
    head = terms(precision="fp8")["bf16"]
    quarter = terms(precision="fp8", bf16_layers=(2, 6))
    assert quarter["fp8"] == pytest.approx(0.75 * terms(precision="fp8")["fp8"])
    assert quarter["bf16"] == pytest.approx(head + 0.25 * (terms()["bf16"] - head))


@pytest.mark.parametrize(
    ("dispatcher", "near", "away"),
    [
        (
            "alltoall",
            8 * 7 / 16,
            8 / 2,
        ),  # of 8 experts of a token 7/16 are on the 7 others of 16 ranks, 1/2 away
        ("allgather", 7, 8),
        ("hybridep", 16 * (1 - (15 / 16) ** 8) * 15 / 16, 2 * (1 - (1 / 2) ** 8) / 2),
    ],
)
def test_a_token_is_sent_to_its_experts(dispatcher, near, away):
    """Forward to the experts and back, and the same backward: four exchanges in BF16."""
    found = terms({**EXPERTS, "expert_model_parallel_size": 16}, replicas=16, dispatcher=dispatcher)
    sent = 8 * 32 * 4 * 2 * 8192 * 4096
    assert found["routing"] == pytest.approx(sent * max(near / 450e9, away / 50e9))


@pytest.mark.parametrize(
    ("model", "settings", "waits"),
    [
        ({}, {}, 8 * 32),
        ({}, {"dispatcher": "hybridep"}, 0),
        ({}, {"graphs": "step"}, 0),
        ({"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, {}, 0),
        ({"expert_model_parallel_size": 1}, {}, 0),
    ],
)
def test_the_host_waits_for_the_tokens_of_experts_in_each_layer(model, settings, waits):
    found = terms({**EXPERTS, "expert_model_parallel_size": 8, **model}, replicas=8, **settings)
    assert found["waits"] == pytest.approx(waits * 1e-3)


def test_graphs_of_modules_contain_their_kernels():
    assert terms(graphs=("attn", "mlp"))["launches"] == 0
    assert terms(graphs=("attn",))["launches"] == pytest.approx(terms()["launches"] * 20 / 56)


def test_the_softmax_takes_time_on_gpus_with_few_exponentials():
    """Two for each score and head, forward and backward: half the sequence in the mean."""
    faster = terms()["attention"] - terms(gpu=replace(GPU_SPEEDS["h100"], exponentials=1e30))["attention"]
    assert faster == pytest.approx(8 * 32 * 2 * 32 * 8192 * 4096 / 4.5e12)


def test_fused_experts_and_windows_save_time():
    assert seconds(EXPERTS, fused_experts=True) < seconds(EXPERTS)
    windows = {**MODEL, "window_size": (127, 0), "window_attn_skip_freq": 2}
    assert terms(windows)["attention"] == pytest.approx(0.5 * (1 + 128 / 4096) * terms()["attention"])


def test_stages_wait_as_the_schedule_states():
    found = step_terms(read_shape({**MODEL, "pipeline_model_parallel_size": 4}), H100)
    assert (found.waiting, found.microbatches) == (3, 8)
    interleaved = {**MODEL, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
    assert step_terms(read_shape(interleaved), H100).waiting == 1.5


def test_sharded_weights_are_gathered_for_each_microbatch():
    assert terms(replicas=8, fsdp=True)["gradients"] > terms(replicas=8)["gradients"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"decoder_seq_length": 128},
            "decoder_seq_length: the time of an encoder and a decoder is not modelled",
        ),
        (IMAGES, "vision_num_layers: the time of a vision encoder is not modelled"),
        ({"hybrid_layer_pattern": "MG-*"}, "layers G is not modelled"),
    ],
)
def test_what_is_not_modelled_has_a_reason(fields, message):
    with pytest.raises(PlanError, match=message):
        terms({**MODEL, **fields})


def test_hybrids_and_further_tokens_have_parts():
    hybrid = read_shape({**EXPERTS, "hybrid_layer_pattern": "ME*E/*E/*E"})
    assert (hybrid.layers, hybrid.ahead) == (("M", "E", "*", "E"), ("*E", "*E"))
    gpt = read_shape({**EXPERTS, "num_layers": 3, "moe_layer_freq": [0, 1, 1], "mtp_num_layers": 1})
    assert (gpt.layers, gpt.ahead) == (("*-", "*E", "*E"), ("*E",))
    assert read_shape({**MODEL, "num_layers": 2, "multi_latent_attention": True}).layers == ("+-", "+-")


def run(**changes):
    """Return the sections of a run, with its estimate."""
    sections = {
        "model": {**MODEL, "bf16": True, "seq_length": 4096, **changes},
        "train": {"global_batch_size": 8, "micro_batch_size": 2, "train_iters": 100},
        "dataset": {"seq_length": 4096},
        "optimizer": {"bf16": True},
    }
    return sections, make_plan(sections, world_size=4)


def settings_of(fields):
    """Return what the prediction reads of a model."""
    return _settings(*run(**fields), "h100")


def test_a_run_is_predicted():
    sections, plan = run()
    found = predict(sections, plan, gpu="h100")
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)
    assert found.tokens_per_second_per_gpu == pytest.approx(8 * 4096 / 4 / found.step_seconds)
    assert found.likely[0] < found.tokens_per_second_per_gpu < found.likely[1]
    assert found.days == pytest.approx(100 * found.step_seconds / 86_400)
    assert found.gpu_hours == pytest.approx(4 * 24 * found.days)
    assert (found.notes, WAITING in found.parts) == ((), False)
    assert found.tflops_per_gpu * 1e12 == pytest.approx(plan.flops * found.tokens_per_second_per_gpu)
    assert found.mfu == pytest.approx(found.tflops_per_gpu / 989)
    assert json.loads(json.dumps(found.to_dict()))["step_seconds"] == found.step_seconds


def test_what_no_published_run_has_is_marked():
    sections, plan = run()
    text = "no published run of a model that is dense on h100 in bf16, only with experts"
    assert predict(sections, plan, gpu="h100").extrapolated == text
    assert predict(sections, plan, gpu="a100").extrapolated == "no published run on a100 in bf16"
    sections, plan = run(fp8="hybrid")
    assert predict(sections, plan, gpu="h100").extrapolated == ""


def test_a_kind_of_model_that_no_published_run_on_the_gpu_has_is_marked():
    sections, plan = run()
    text = "no published run of a model that is dense on gb200 in bf16, only with experts"
    assert predict(sections, plan, gpu="gb200").extrapolated == text


def test_what_is_not_in_the_time_is_noted():
    sections, plan = run(
        recompute_granularity="selective",
        attn_logit_softcapping=50.0,
        num_moe_experts=8,
        overlap_moe_expert_parallel_comm=True,
    )
    assert [note.split(",")[0] for note in predict(sections, plan, gpu="h100").notes] == [
        "attention is predicted as fused",
        "the overlap of expert communication with computation is that of the published runs on average",
        "experts are taken to be loaded evenly",
    ]


@pytest.mark.parametrize(
    ("changes", "gpu", "message"),
    [
        ({"bf16": False}, "h100", "float32 is not modelled"),
        ({"fp4": "e2m1"}, "h100", "h100 does not compute in fp4"),
        ({}, "v100", "the speed of v100 is not known"),
    ],
)
def test_a_run_that_cannot_be_predicted_has_a_reason(changes, gpu, message):
    sections, plan = run(**changes)
    with pytest.raises(PlanError, match=message):
        predict(sections, plan, gpu=gpu)


def test_a_batch_that_does_not_divide_has_a_reason():
    sections, _ = run()
    sections["train"]["global_batch_size"] = 7
    with pytest.raises(PlanError, match="the microbatches of a step are not known"):
        predict(sections, make_plan(sections, world_size=4), gpu="h100")


def test_the_first_event_of_a_run_has_its_predicted_speed():
    sections, plan = run()
    found = predicted_speed(sections, gpu="h100", world_size=4)
    speed = predict(sections, plan, gpu="h100").tokens_per_second_per_gpu
    assert found == {"predicted_tokens_per_second_per_gpu": round(speed, 1)}
    assert predicted_speed(sections, gpu=None, world_size=4) == {}
    assert predicted_speed(sections, gpu="v100", world_size=4) == {}


@pytest.mark.parametrize(
    ("fields", "graphs"),
    [
        ({}, ()),
        ({"cuda_graph_impl": "full_iteration"}, "step"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, "step"),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}, ("attn",)),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": "mlp,attn"}, ("attn", "mlp")),
        ({"cuda_graph_impl": "transformer_engine"}, ("attn", "mamba", "mlp", "moe")),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": "full"}, ("attn", "mamba", "mlp", "moe")),
    ],
)
def test_graphs_are_those_of_the_model(fields, graphs):
    assert settings_of(fields).graphs == graphs


@pytest.mark.parametrize(
    ("fields", "dispatcher"),
    [
        ({}, "allgather"),
        ({"moe_token_dispatcher_type": "alltoall"}, "alltoall"),
        ({"moe_token_dispatcher_type": "flex"}, "deepep"),
        ({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}, "hybridep"),
    ],
)
def test_the_dispatcher_is_that_of_the_model(fields, dispatcher):
    assert settings_of(fields).dispatcher == dispatcher


@pytest.mark.parametrize(
    ("fields", "recomputed"),
    [
        ({}, ()),
        ({"recompute_granularity": "full"}, ()),
        ({"recompute_granularity": "selective"}, ("core_attn",)),
        ({"recompute_granularity": "selective", "recompute_modules": ["mlp"]}, ("mlp",)),
    ],
)
def test_what_is_recomputed_is_that_of_the_model(fields, recomputed):
    assert settings_of(fields).recomputed == recomputed


@pytest.mark.parametrize(
    ("fields", "fraction"),
    [
        ({}, 0),
        ({"recompute_granularity": "selective"}, 0),
        ({"recompute_granularity": "full"}, 1),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 4}, 1),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4}, 4 / 32),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 40}, 1),
    ],
)
def test_a_fraction_of_the_layers_is_recomputed_as_a_whole(fields, fraction):
    """`uniform` checkpoints groups of layers, all of them; `block` the first layers of each virtual stage."""
    assert settings_of(fields).recomputed_layers == fraction


def test_recomputed_layers_are_a_third_of_their_products_without_the_output_layer():
    """Narayanan et al. (2021): 96 instead of 72 B s l h^2 for the layers, and 6 B s h V of the logits as before."""
    plain, again = terms(), terms(recomputed_layers=0.5)
    logits = 3 * 2 * 8192 * 4096 * 128_256 / GPU_SPEEDS["h100"].bf16 * 8
    assert again["bf16"] - plain["bf16"] == pytest.approx((plain["bf16"] - logits) / 6)
    assert again["attention"] == pytest.approx(7 / 6 * plain["attention"])


def test_without_the_distributed_optimizer_each_replica_updates_all_weights():
    weights = 2 * 128_256 * 4096 + 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    more = terms(replicas=8, sharded_optimizer=False)["memory"] - terms(replicas=8)["memory"]
    assert more == pytest.approx(28 * weights * 7 / 8 / GPU_SPEEDS["h100"].memory, rel=1e-6)


@pytest.mark.parametrize(
    ("ddp", "found"),
    [
        ({}, (False, False)),
        ({"use_distributed_optimizer": True}, (False, True)),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"}, (False, True)),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, (True, True)),
    ],
)
def test_what_is_sharded_is_that_of_the_run(ddp, found):
    """Only `optim_grads_params` gathers weights for each microbatch."""
    sections, plan = run()
    settings = _settings({**sections, "optimizer": {}, "ddp": ddp}, plan, "h100")
    assert (settings.fsdp, settings.sharded_optimizer) == found


def test_layers_in_bf16_are_those_of_the_model():
    """Megatron Core's defaults of `num_layers_at_start_in_bf16` and `num_layers_at_end_in_bf16` are 1."""
    fields = {"first_last_layers_bf16": True, "num_layers_at_end_in_bf16": 14}
    assert (settings_of({}).bf16_layers, settings_of(fields).bf16_layers) == ((0, 0), (1, 14))
