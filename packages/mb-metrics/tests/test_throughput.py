import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import Metrics, report_runtime, report_throughput


@dataclass(frozen=True)
class Config:
    global_batch_size: int = 8
    micro_batch_size: int = 2


@dataclass(frozen=True)
class State:
    step: int
    consumed_train_samples: int = 0


def test_every_rate():
    assert report_throughput(Config(), 3, 100, [0.0, 2.0, 4.0], 2, world_size=4) == {
        "throughput/batches_per_sec": 0.5,
        "throughput/samples_per_sec": 4.0,
        "throughput/tokens_per_sec": 400.0,
        "throughput/device/batches_per_sec": 0.125,
        "throughput/device/samples_per_sec": 1.0,
        "throughput/device/tokens_per_sec": 100.0,
        "throughput/micro_batch_size": 2.0,
        "throughput/global_batch_size": 8.0,
    }


@settings(deadline=None)
@given(window=st.integers(1, 50), extra=st.integers(1, 60))
def test_steps_of_one_second_are_one_step_per_second_at_any_window(window, extra):
    history = [float(second) for second in range(window + extra)]
    report = report_throughput(Config(), 0, 16, history, window)
    assert report["throughput/batches_per_sec"] == 1.0
    # A full history counted as window - 1 steps would be low by 1 / window.
    assert report["throughput/batches_per_sec"] != (window - 1) / window


def test_a_changing_batch_size_counts_what_was_consumed():
    history, consumed = [0.0, 1.0, 2.0, 3.0], [0, 2, 6, 14]
    report = report_throughput(Config(), 3, 1, history, 2, consumed_samples=consumed)
    assert report["throughput/samples_per_sec"] == (14 - 2) / 2


@pytest.mark.parametrize("history", [[], [1.0], [1.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
def test_nothing_before_the_window_is_full_or_when_no_time_passed(history):
    assert report_throughput(Config(), 1, 1, history, 3) == {}


def test_sample_counts_must_fit_the_history():
    with pytest.raises(ValueError, match="1 sample counts for 2 time stamps"):
        report_throughput(Config(), 1, 1, [0.0, 1.0], 1, consumed_samples=[1])


def test_runtime_of_a_resumed_job_goes_by_its_own_steps():
    state = State(step=900, consumed_train_samples=7200)
    report = report_runtime(state, 50.0, 100, 1000, start_step=890, clock=lambda: 60.0)
    assert report == {
        "time/total": 10.0,
        "time/tokens": 720_000.0,
        "time/samples": 7200.0,
        "time/batches": 900.0,
        "time/remaining_estimate": 100.0,  # dividing by all 900 steps ever done would give 1.1 s
    }


def test_while_the_batch_grows_samples_determine_the_time_left():
    state = State(step=60, consumed_train_samples=600)
    run = {"start_step": 50, "start_samples": 500, "clock": lambda: 10.0}
    # 100 samples in 10 s, and 400 to go in steps that are larger from now on.
    by_samples = report_runtime(state, 0.0, 1, 70, train_samples=1000, **run)
    assert by_samples["time/remaining_estimate"] == 40.0
    assert report_runtime(state, 0.0, 1, 70, **run)["time/remaining_estimate"] == 10.0


@pytest.mark.parametrize(("unit", "total"), [("minutes", 120.0), ("hours", 2.0), ("days", 2 / 24)])
def test_runtime_units(unit, total):
    report = report_runtime(State(step=1), 0.0, 1, 2, unit, clock=lambda: 7200.0)
    assert (report["time/total"], report["time/remaining_estimate"]) == pytest.approx((total, total))


def test_no_estimate_before_the_first_step():
    assert "time/remaining_estimate" not in report_runtime(State(step=5), 0.0, 1, 9, start_step=5)


def test_nothing_is_left_after_the_last_step():
    report = report_runtime(State(step=12), 0.0, 1, 10, clock=lambda: 1.0)
    assert report["time/remaining_estimate"] == 0.0


def test_an_unknown_unit_is_rejected():
    with pytest.raises(ValueError, match="unknown time unit 'weeks'"):
        report_runtime(State(step=1), 0.0, 1, 1, "weeks")


@pytest.mark.parametrize(("variables", "devices"), [({"WORLD_SIZE": "4"}, 4), ({}, 1)])
def test_the_seeds_five_arguments_divide_by_the_world_size(monkeypatch, variables, devices):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = report_throughput(Config(), 3, 100, [0.0, 2.0, 4.0], 2)
    assert report["throughput/device/tokens_per_sec"] == report["throughput/tokens_per_sec"] / devices


def test_the_process_group_wins_over_the_launchers_variable(monkeypatch):
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("WORLD_SIZE", "4")
    report = report_throughput(Config(), 3, 100, [0.0, 2.0, 4.0], 2)
    assert report["throughput/device/batches_per_sec"] == report["throughput/batches_per_sec"] / 2


def test_metrics_divide_by_the_world_size_of_the_job(monkeypatch, recorder):
    monkeypatch.setenv("WORLD_SIZE", "8")
    for world_size in (None, 2):
        with Metrics([recorder], log_interval=1, world_size=world_size) as metrics:
            metrics.record(1, {})
    assert [row.values["world-size"] for row in recorder.rows] == [8, 2]


@pytest.mark.parametrize("text", ["0", "eight", "-1"])
def test_a_world_size_that_is_not_a_number_is_rejected(monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(ValueError, match=f"WORLD_SIZE: '{text}' is not a positive integer"):
        report_throughput(Config(), 3, 100, [0.0, 2.0, 4.0], 2)
