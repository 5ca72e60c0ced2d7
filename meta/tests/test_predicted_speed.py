"""Predicted steps in `mb plan` and `mb sweep`, and published TFLOP/s that our FLOPs reproduce."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mb_metrics import model_flops_per_token
from mb_trainer.cli.app import app

SCRIPT = Path(__file__).parents[2] / "packages" / "mb-plan" / "benchmarks" / "fit_step_time.py"
TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
H100 = ("--gpu", "h100", "--te", "2.20")
COUNTED_OTHERWISE = {
    "GPT OSS 120B": "its BF16 runs, whose published FLOPs are a fifth below those of its windows"
}


@pytest.fixture(scope="module")
def script():
    """Return the module of the fit script, which reads the published runs."""
    spec = spec_from_file_location("fit_step_time", SCRIPT)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mb(*words):
    return CliRunner().invoke(app, [*words])


def published_ratio(run, counted_as):
    """Return our TFLOP/s of a published run, relative to the published ones.

    Runs of adapters train no base weights, on short packed answers, whose attention the publication leaves out.
    """
    row = run.row
    fields = counted_as.get(row["model"], {"fields": {}})["fields"]
    flops = model_flops_per_token({**run.model, **fields}, seq_length=row["seq_length"])
    total = flops.total
    if row["task"] == "lora":
        total = 2 / 3 * (total - flops.parts["attention_core"])
    return total * row["tokens_per_second_per_gpu"] / 1e12 / row["model_tflops_per_gpu"]


def test_our_flops_reproduce_the_published_tflops(script):
    rows = [run for run in script.published_runs() if run.row["model_tflops_per_gpu"]]
    counted_as = script.published_data()["counted_as"]
    other = [run for run in rows if abs(published_ratio(run, counted_as) - 1) > 0.03]
    assert len(rows) == 255
    assert len(other) / len(rows) <= 0.1
    assert {(run.family, run.row["format"]) for run in other} == {("GPT OSS 120B", "bf16")}


def test_a_plan_has_the_predicted_step():
    found = mb("plan", "llama31_70b", "--world-size", "64", *H100, "--explain")
    assert found.exit_code == 0
    lines = {line[:17].strip(): line[17:] for line in found.stdout.splitlines()}
    assert lines["step"].endswith("s predicted on h100")
    assert "tokens/s per GPU, likely" in lines["speed"]
    assert "TFLOP/s per GPU" in lines["MFU"]
    assert "GPU hours" in lines["run"]
    assert lines["extrapolated"] == (
        "no published run of a model that is dense on h100 in bf16, only with experts"
    )
    assert "pipeline stages wait for each other" in found.stdout


def test_the_json_of_a_plan_has_its_parts():
    found = json.loads(mb("plan", "llama31_70b", "--world-size", "64", *H100, "--json").stdout)["predicted"]
    assert sum(found["parts"].values()) == pytest.approx(found["step_seconds"])
    assert 0.3 < found["mfu"] < 0.7


def test_a_plan_without_prediction_has_the_reason():
    found = mb("plan", "gpt_tiny", "--world-size", "1", *H100)
    assert (
        "note: the time of a step is not predicted: the time of a run in float32 is not modelled"
        in found.stderr
    )


def test_a_sweep_on_a_gpu_shows_the_fastest_points_that_fit_first(tmp_path):
    words = (
        f"{TP}=2,4,8",
        f"{PP}=4,8",
        "model.virtual_pipeline_model_parallel_size=null",
        "--world-size",
        "64",
    )
    chart = tmp_path / "charts" / "sweep.svg"
    found = json.loads(mb("sweep", "llama31_70b", *words, *H100, "--json", "--chart", str(chart)).stdout)
    speeds = [point["predicted"]["tokens_per_second_per_gpu"] for point in found["shown"] if point["fits"]]
    assert len(speeds) > 1
    assert speeds == sorted(speeds, reverse=True)
    fits = [point["fits"] for point in found["shown"]]
    assert fits == sorted(fits, reverse=True)
    assert 0 < chart.read_text().count("<circle") <= found["resolved"]
    text = mb("sweep", "llama31_70b", *words, *H100, "--limit", "2").stdout
    assert "tokens/s/GPU" in text
    assert "5 points resolved, 2 shown" in text


def test_a_chart_of_a_sweep_needs_a_gpu_and_a_predicted_time(tmp_path):
    found = mb("sweep", f"{TP}=1,2", "--chart", str(tmp_path / "a.svg"))
    assert found.exit_code == 2
    assert "give --gpu" in found.stderr
    chart = tmp_path / "b.svg"
    found = mb("sweep", "gpt_tiny", "train.micro_batch_size=4,8", *H100, "--chart", str(chart))
    assert "no chart written" in found.stderr
    assert not chart.exists()
