"""Benchmark of a run: the request, the result, ratios, and commands in turn."""

import json
import math
import sys
from dataclasses import replace

import pytest

from mb_metrics.bench.command import BenchCommandError, BenchPlan, BenchRunError, measure
from mb_metrics.bench.request import BenchRequest, BenchRequestError, bench_callbacks
from mb_metrics.bench.result import BenchResult, combine_rounds, ratios

RESULT = BenchResult(
    device="NVIDIA H100 80GB HBM3",
    world_size=2,
    warmup_steps=5,
    step_times=(0.5, 0.25, 0.25),
    tokens=3000,
    flops=4e14,
    peak_tflops=1000.0,
    peak_memory_gib=10.0,
    synchronizations_per_step=1.0,
    scalar_reads_per_step=2.0,
    kernel_launches_per_step=400.0,
    losses=(4.0, 3.0),
)
PLAN = BenchPlan(steps=2, warmup=1, profiled=0)


def test_rates_follow_from_all_measured_steps():
    found = RESULT.as_json()
    assert found["step_seconds"] == {"median": 0.25, "min": 0.25, "max": 0.5}
    assert (found["tokens_per_second"], found["tflops_per_device"], found["mfu"]) == (3000.0, 200.0, 0.2)
    assert RESULT.as_text() == (
        "0.25 s per step, 3,000 tokens/s, MFU 20.0%, 10.00 GiB, 1 synchronizations per step, 400 launches per step"
    )


def test_what_is_not_known_is_none():
    cpu = replace(
        RESULT, peak_tflops=None, tokens=None, synchronizations_per_step=None, kernel_launches_per_step=None
    )
    found = cpu.as_json()
    names = ("mfu", "tokens_per_second", "synchronizations_per_step", "kernel_launches_per_step")
    assert [found[name] for name in names] == [None, None, None, None]
    assert cpu.as_text() == "0.25 s per step, 10.00 GiB"
    assert ratios(RESULT, cpu)["mfu"] is None


def test_ratios_are_multiples_of_the_second_run():
    slower = replace(RESULT, step_times=(1.0, 0.5, 0.5), peak_memory_gib=5.0)
    assert ratios(RESULT, slower) == {
        "step_seconds": 0.5,
        "tokens_per_second": 2.0,
        "mfu": 2.0,
        "peak_memory_gib": 2.0,
        "kernel_launches_per_step": 1.0,
    }


def test_rounds_are_one_result():
    other = replace(RESULT, step_times=(0.5,), tokens=1000, peak_memory_gib=11.0)
    both = combine_rounds([RESULT, other])
    assert (both.step_times, both.tokens, both.peak_memory_gib) == ((0.5, 0.25, 0.25, 0.5), 4000, 11.0)
    assert combine_rounds([RESULT, replace(other, tokens=None)]).tokens is None


def test_a_loss_that_is_not_finite_is_null():
    assert replace(RESULT, losses=(1.0, math.nan, math.inf)).as_json()["losses"] == [1.0, None, None]


def test_a_result_is_the_same_after_a_file():
    assert BenchResult.from_dict(json.loads(json.dumps(RESULT.to_dict()))) == RESULT


def test_a_request_is_the_same_after_the_environment(tmp_path):
    request = BenchRequest(result=tmp_path / "result.json", steps=3, warmup=0, profiled=1)
    assert BenchRequest.from_environment(request.variables()) == request
    assert (request.length, bench_callbacks({})) == (4, [])


@pytest.mark.parametrize("steps", ["", "0", "many"])
def test_a_malformed_request_is_rejected(steps):
    with pytest.raises(BenchRequestError, match=r"MB_BENCH_STEPS: must be a number of steps, at least 1"):
        BenchRequest.from_environment({"MB_BENCH_RESULT": "result.json", "MB_BENCH_STEPS": steps})


def program(text):
    return lambda run, request: [sys.executable, "-c", text]


WRITES = f"import os; open(os.environ['MB_BENCH_RESULT'], 'w').write({json.dumps(RESULT.to_dict())!r})"


def test_two_commands_are_measured_in_turn(tmp_path):
    lines = []
    both = [("new", program(WRITES)), ("old", program(WRITES))]
    found = measure(both, replace(PLAN, rounds=2), folder=tmp_path, log=lines.append)
    assert [line.partition(":")[0] for line in lines] == ["new", "old", "new", "old"]
    assert (found["run"]["name"], found["against"]["name"]) == ("new", "old")
    assert (found["run"]["steps"], found["ratios"]["step_seconds"]) == (6, 1.0)
    with pytest.raises(BenchCommandError, match=r"--out: .*run-1 holds files"):
        measure(both, PLAN, folder=tmp_path, log=lines.append)
    assert {each.name for each in tmp_path.iterdir()} == {"run-1", "run-2", "against-1", "against-2"}


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (
            program("raise SystemExit('no data')"),
            BenchRunError,
            r"new: the run failed with exit code 1.*\n.*no data",
        ),
        (program("raise SystemExit(2)"), BenchCommandError, r"failed with exit code 2"),
        (program(""), BenchRunError, r"new: the run ended without a result, because .* fewer than 3 steps"),
        (
            lambda run, request: ["/no/such/program"],
            BenchCommandError,
            r"new: cannot be started \(.*No such file",
        ),
    ],
)
def test_a_command_that_fails_is_one_error(command, error, text):
    with pytest.raises(error, match=text):
        measure([("new", command)], PLAN)
