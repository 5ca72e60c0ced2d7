"""Runs by model, GPUs and tokens: the layouts that are proposed, and the program."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mb_plan import best_layouts, describe_run
from mb_plan.errors import ModelFileError, PlanError
from mb_plan.shape.sources import model_of_sizes
from mb_plan.sweep.run import layouts, plan_layout, read_amount, read_gpus

SIZES = {"layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 4096, "vocab": 32_000}
MODEL = model_of_sizes(**SIZES)
TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"


def described(**changes):
    return describe_run(MODEL, **{"gpus": "8xh100", "seq_length": 4096, "tokens": "1B", **changes})


def test_the_batch_has_about_four_million_tokens_and_a_sequence_for_each_gpu():
    assert described().global_batch_size == 1024
    assert described(gpus="4096xh100").global_batch_size == 4096
    assert described(gpus="24xh100").global_batch_size % 24 == 0
    assert described(global_batch_size=16).global_batch_size == 16


def test_the_first_layout_fits_and_is_the_fastest_of_all_that_are_possible():
    run = described()
    best = best_layouts(run, number=1000)
    speeds = [point.prediction.tokens_per_second_per_gpu for point in best if point.fits]
    assert speeds == sorted(speeds, reverse=True)
    every = [dict(layout) for layout in layouts(run, {})]
    assert len(best) <= len(every)
    assert all(8 % (each.get(TP, 1) * each.get(PP, 1) * each.get(CP, 1)) == 0 for each in every)


def test_fixed_sizes_are_kept_and_a_run_has_its_length():
    (best,) = best_layouts(described(), fixed={TP: 2, "micro_batch_size": 4}, number=1)
    assert (best.values[f"model.{TP}"], best.values["train.micro_batch_size"]) == (2, 4)
    steps = -(-(10**9) // (1024 * 4096))
    assert best.prediction.days == pytest.approx(steps * best.prediction.step_seconds / 86_400)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({TP: 16}, "8 GPUs are not a multiple of tp x pp x cp = 16"),
        ({"micro_batch_size": 3}, "1024 sequences do not divide into equal microbatches for 8 replicas"),
        (
            {PP: 4, "virtual_pipeline_model_parallel_size": 2, "micro_batch_size": 256},
            "2 microbatches in groups of 4 are not possible on pp=4 stages",
        ),
    ],
)
def test_a_layout_that_does_not_divide_has_a_reason(layout, message):
    with pytest.raises(PlanError, match=message):
        plan_layout(described(), layout)


@pytest.mark.parametrize(
    ("microbatches", "possible"), [(8, False), (9, True), (10, True), (4, False), (12, False)]
)
def test_microbatches_of_virtual_stages_come_in_groups(microbatches, possible):
    """Megatron Core needs a group of at least one microbatch for each stage, and so does its last group."""
    model = {**MODEL, "microbatch_group_size_per_vp_stage": 5}
    run = describe_run(model, gpus="8xh100", seq_length=4096, global_batch_size=2 * microbatches)
    layout = {PP: 4, "virtual_pipeline_model_parallel_size": 2}
    if possible:
        assert plan_layout(run, layout).plan.num_microbatches == microbatches
    else:
        with pytest.raises(PlanError, match="in groups of 5 are not possible on pp=4 stages"):
            plan_layout(run, layout)


def test_experts_divide_the_gpus():
    model = {**MODEL, "num_moe_experts": 8, "moe_router_topk": 2, "expert_tensor_parallel_size": 1}
    run = describe_run(model, gpus="12xh100", seq_length=4096)
    with pytest.raises(PlanError, match="12 GPUs are not a multiple of etp x ep x pp = 8"):
        plan_layout(run, {"expert_model_parallel_size": 8})


def test_without_a_possible_layout_there_is_a_reason():
    with pytest.raises(PlanError, match="no parallel layout of the model is possible on 8 GPUs"):
        best_layouts(described(), fixed={TP: 3})


@pytest.mark.parametrize(
    ("text", "found"), [("64xh100", (64, "h100")), ("8 x B200", (8, "b200")), ("72xGB200", (72, "gb200"))]
)
def test_gpus_are_a_number_and_a_name(text, found):
    assert read_gpus(text) == found


@pytest.mark.parametrize("text", ["h100", "0xh100", "8xabacus", "x", "8xv100"])
def test_other_gpus_are_refused(text):
    with pytest.raises(ModelFileError, match="is not a number and a known GPU"):
        read_gpus(text)


@pytest.mark.parametrize(
    ("text", "found"), [("15T", 15e12), ("300b", 300e9), ("1.4e12", 1.4e12), ("2.5M", 2.5e6)]
)
def test_tokens_have_units(text, found):
    assert read_amount(text) == found


@pytest.mark.parametrize("text", ["", "many", "0", "-1", "1Q"])
def test_other_numbers_of_tokens_are_refused(text):
    with pytest.raises(ModelFileError, match="is not a number of tokens"):
        read_amount(text)


BY_HAND = [word for name, size in SIZES.items() for word in (f"--{name.replace('_', '-')}", size)]


def test_the_program_prints_a_plan_the_prediction_and_layouts(program, tmp_path):
    done = program(
        *BY_HAND, "--gpus", "8xh100", "--tokens", "1B", "--explain", "--chart", tmp_path / "new" / "m.svg"
    )
    lines = done.stdout.splitlines()
    assert (done.exit_code, lines[0].startswith("model on 8 processes (")) == (0, True)
    for start in ("parameters", "work of a token", "checkpoint", "memory           fits", "step", "run"):
        assert any(line.startswith(start) for line in lines)
    assert sum("%" in line and line.strip()[:1].isdigit() for line in lines) >= 5
    assert "planned for 1,024 sequences in a step" in done.stderr
    for name in ("m.svg", "m-step.svg"):
        assert ElementTree.parse(tmp_path / "new" / name).getroot().tag.endswith("svg")


def test_the_program_prints_json(program):
    done = program(*BY_HAND, "--tp", 2, "--pp", 1, "--top", 2, "--json")
    found = json.loads(done.stdout)
    assert found["parameters"]["total"] > 1e8
    assert (found["gpu"], found["fits"], len(found["layouts"])) == ("h100", True, 2)
    assert found["layout"][f"model.{TP}"] == 2
    assert found["flops_per_token"]["total"] == pytest.approx(
        sum(number for name, number in found["flops_per_token"].items() if name != "total")
    )


def test_a_file_of_a_run_has_its_batch_its_length_and_its_layout(program, tmp_path):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / "run.yaml").write_text(
        "model: {num_layers: 8, hidden_size: 1024, num_attention_heads: 8, tensor_model_parallel_size: 2,\n"
        "        position_embedding_type: rope}\n"
        "train: {global_batch_size: 48, micro_batch_size: 3}\ndataset: {seq_length: 512}\n"
    )
    found = json.loads(program(tmp_path / "run.yaml", "--vocab", 32000, "--json").stdout)
    assert found["batch"] == 48
    assert (found["layout"][f"model.{TP}"], found["layout"]["train.micro_batch_size"]) == (2, 3)
    assert found["flops_per_step"] == pytest.approx(found["flops_per_token"]["total"] * 48 * 512)


def test_a_run_that_does_not_fit_is_exit_code_one(program):
    words = (
        "--layers",
        200,
        "--hidden",
        16384,
        "--heads",
        128,
        "--vocab",
        128000,
        "--gpus",
        "8xh100",
        "--pp",
        1,
    )
    assert program(*words, "--micro-batch", 1, "--cp", 1, "--tp", 8).exit_code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a file, a command line, or sizes by hand"),
        (("nowhere.json",), "nowhere.json: cannot be used (No such file or directory)"),
        (("--layers", 2), "the model: has not all sizes. Give --hidden, --heads, --vocab"),
        (("sizes.yaml",), "sizes.yaml: has not all sizes. Give --vocab"),
        ((*BY_HAND, "--gpus", "8"), "is not a number and a known GPU"),
        ((*BY_HAND, "--precision", "int8"), "is none of bf16, fp8, fp4"),
        ((*BY_HAND, "--chart", "m.png"), "ends in .svg"),
    ],
)
def test_what_cannot_be_read_is_exit_code_two(program, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sizes.yaml").write_text(
        "model: {num_layers: 2, transformer: {hidden_size: 8, num_attention_heads: 2}}"
    )
    done = program(*words)
    assert (done.exit_code, message in " ".join(done.stderr.replace("│", " ").split())) == (2, True)


def test_the_version_is_printed(program):
    assert program("--version").stdout.startswith("mb-plan ")
