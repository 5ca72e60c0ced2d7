"""Measurement of the steps of a loop on the CPU, and of a program by `mb-metrics bench`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs mb-metrics[torch]")

from mb_metrics.bench.recorder import READS, BenchRecorder, CallCounter  # noqa: E402
from mb_metrics.bench.request import BenchRequest  # noqa: E402
from mb_metrics.bench.result import BenchResult  # noqa: E402


def train(recorder, *, steps, step=lambda: None, tokens=32):
    """Fire the events of a loop that counts 1e9 FLOPs in each step."""
    counters = SimpleNamespace(floating_point_operations_so_far=0)
    context = SimpleNamespace(state=SimpleNamespace(train_state=counters), result=None)
    recorder.on_train_start(context)
    for number in range(1, steps + 1):
        step()
        counters.floating_point_operations_so_far += 1e9
        context.result = SimpleNamespace(losses={"lm loss": torch.tensor(1.0 / number)}, tokens=tokens)
        recorder.on_train_step_end(context)
    recorder.on_train_end(context)


@pytest.mark.parametrize("warmup", [0, 2])
def test_steps_after_the_warm_up_are_measured_and_calls_after_them_counted(tmp_path, warmup):
    request = BenchRequest(result=tmp_path / "result.json", steps=3, warmup=warmup, profiled=2)
    train(BenchRecorder(**asdict(request)), steps=request.length, step=lambda: torch.ones(2).sum().item())
    found = BenchResult.from_dict(json.loads(request.result.read_text()))
    assert (len(found.step_times), found.tokens, found.flops, found.world_size) == (3, 96, 3e9, 1)
    assert found.scalar_reads_per_step == 1.0
    assert (found.synchronizations_per_step, found.mfu) == (None, None)
    assert found.losses == pytest.approx([1.0 / number for number in range(1, warmup + 4)])
    assert found.peak_memory_gib > 0


def test_a_run_that_is_too_short_leaves_no_result(tmp_path):
    request = BenchRequest(result=tmp_path / "result.json", steps=3, warmup=1, profiled=0)
    train(BenchRecorder(**asdict(request)), steps=3)
    assert not request.result.exists()


def test_unknown_tokens_are_none(tmp_path):
    request = BenchRequest(result=tmp_path / "result.json", steps=2, warmup=1, profiled=0)
    train(BenchRecorder(**asdict(request)), steps=3, tokens=None)
    found = BenchResult.from_dict(json.loads(request.result.read_text()))
    assert (found.tokens, found.scalar_reads_per_step) == (None, None)


def test_every_kind_of_read_is_counted():
    value = torch.ones(1)
    with CallCounter() as counter:
        assert value.item() + float(value) + int(value) + bool(value) == 4
    assert counter.total(READS) == 4


PROGRAM = """
import os
from test_bench_recorder import train
from mb_metrics.bench.request import bench_callbacks  # noqa: E402
(recorder,) = bench_callbacks(os.environ)
train(recorder, steps=5)
"""


def test_a_program_with_the_callback_is_measured(monkeypatch):
    pytest.importorskip("typer", reason="needs mb-metrics[cli]")
    from typer.testing import CliRunner

    from mb_metrics.cli.app import app

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    words = ["bench", "--steps", "2", "--warmup", "1", "--profiled", "1", sys.executable, "-c", PROGRAM]
    done = CliRunner().invoke(app, [*words, "--against", f"{sys.executable} -c 'raise SystemExit(2)'"])
    assert (done.exit_code, "failed with exit code 2" in done.stderr) == (2, True)
    done = CliRunner().invoke(app, words)
    found = json.loads(done.stdout)["run"]
    assert (found["steps"], found["device"]) == (2, "cpu")
    for text in ("", "'"):
        done = CliRunner().invoke(app, [*words, "--against", text])
        assert (done.exit_code, done.stderr.startswith("error: --against: ")) == (2, True)
