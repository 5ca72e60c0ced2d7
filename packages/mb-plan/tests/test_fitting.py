"""The cheapest change with which a run fits its GPU, for sizes by hand and for published runs."""

import json

import pytest

pytest.importorskip("typer", reason="needs mb-plan[cli]")

from typer.testing import CliRunner

from mb_plan import GPU_MEMORY, describe_run, make_plan, model_of_sizes
from mb_plan.cli.app import app
from mb_plan.cli.step_report import print_fitting
from mb_plan.sweep.fitting import fitting_changes
from mb_plan.sweep.points import SweptPoint

LLAMA_70B = model_of_sizes(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128_256)


def changes(*, gpus, tp, pp, micro_batch_size=1):
    run = describe_run(LLAMA_70B, gpus=gpus, seq_length=8192, global_batch_size=512)
    sections = run.sections(
        {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "micro_batch_size": micro_batch_size,
        }
    )
    plan = make_plan(sections, world_size=run.gpus)
    assert plan.fits(run.gpu) is False
    return list(fitting_changes(sections, plan, gpu=run.gpu))


def number_of_changes(point):
    """Count the fields that a change is named by: each has one of them."""
    named = ("granularity", "micro_batch", "tensor_model", "pipeline_model", "context", "offload_fraction")
    return sum(any(name in path for path in point.values) for name in named)


def test_each_change_fits_and_the_fewest_are_first():
    found = changes(gpus="64xh100", tp=4, pp=2)
    assert all(point.plan.needed_bytes <= GPU_MEMORY["h100"].size for point in found)
    on_the_gpu = [point for point in found if "optimizer.optimizer_cpu_offload" not in point.values]
    assert found[: len(on_the_gpu)] == on_the_gpu
    numbers = [number_of_changes(point) for point in on_the_gpu]
    assert numbers == sorted(numbers)
    assert {*numbers} == {1, 2, 3}


def test_of_equally_many_changes_the_fastest_step_is_first():
    found = changes(gpus="64xh100", tp=8, pp=2, micro_batch_size=2)
    on_the_gpu = [point for point in found if not point.plan.host_bytes]
    seconds = [point.prediction.step_seconds for point in on_the_gpu if number_of_changes(point) == 1]
    assert len(seconds) > 2
    assert seconds == sorted(seconds)


def test_the_optimizer_on_the_host_is_the_last_resort():
    """With 70.6e9 weights on 8 ranks, moments and halves of master weights are 88 GB on each."""
    first = changes(gpus="8xh100", tp=8, pp=1)[0]
    assert first.values["optimizer.optimizer_cpu_offload"] is True
    assert first.plan.host_bytes == pytest.approx(70.55e9 * (8 + 2) / 8, rel=0.01)


def test_settings_are_overrides():
    point = SweptPoint(
        values={
            "model.a": "full",
            "model.b": ["mlp", "moe"],
            "train.c": True,
            "train.d": None,
            "optimizer.e": 1.0,
        },
        plan=None,
        unplanned="",
    )
    assert point.settings == [
        "model.a=full",
        "model.b=[mlp,moe]",
        "train.c=true",
        "train.d=null",
        "optimizer.e=1.0",
    ]


def test_a_run_without_such_a_change(capsys):
    print_fitting(None)
    assert capsys.readouterr().out.startswith("fits with        none of the changes")


SIZES = [
    "--layers",
    "80",
    "--hidden",
    "8192",
    "--heads",
    "64",
    "--kv-heads",
    "8",
    "--ffn",
    "28672",
    "--vocab",
    "128256",
]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_program_names_the_change(as_json):
    options = [*SIZES, "--gpus", "8xh100", "--seq", "8192", "--batch", "512"]
    result = CliRunner().invoke(app, [*options, *(["--json"] if as_json else [])])
    assert result.exit_code == 1
    if as_json:
        assert json.loads(result.stdout)["fits_with"]["fits"] is True
    else:
        assert "fits with" in result.stdout
