"""The callback that writes events.jsonl, in a loop that fires the events."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mb_metrics import EventLog, EventRecorder, LastStep, read_event_rows
from mb_metrics.run.events import parse_event


def context(step, **fields):
    state = SimpleNamespace(train_state=SimpleNamespace(step=step))
    return SimpleNamespace(state=state, **{"total_loss_dict": None, "outcome": None, "save": None, **fields})


def save(step, *, message=None):
    return SimpleNamespace(
        step=step,
        non_persistent=False,
        path=Path(f"/checkpoints/iter_{step:07d}"),
        seconds=0.5,
        write_seconds=3.0,
        total_bytes=1024,
        message=message,
    )


@pytest.fixture
def events(tmp_path):
    return tmp_path / "events.jsonl"


@pytest.fixture
def recorder(events, clock):
    return EventRecorder(
        EventLog(events, clock=lambda: 1.0),
        description={"recipe": "tiny"},
        resume_description={"changes": {"train.train_iters": [20, 30]}},
        previous=LastStep(step=12, time=0.5),
        process_start=6.0,
        clock=clock,
        wall_clock=lambda: 8.0,
    )


def test_a_run_with_an_evaluation_saves_and_a_stop(events, recorder, clock):
    with recorder:
        recorder.on_train_start(context(0))
        recorder.on_train_step_end(context(1))
        recorder.on_eval_start(context(1))
        clock.now += 2
        recorder.on_eval_end(context(1, total_loss_dict={"lm loss": 4.0}))
        recorder.on_checkpoint_failed(context(1, save=save(1, message="no space")))
        recorder.on_checkpoint_save(context(2, save=save(1)))
        recorder.on_train_end(context(2, outcome=SimpleNamespace(reason="finished")))
    assert list(read_event_rows(events)) == [
        {"event": "start", "time": 1.0, "step": 0, "recipe": "tiny", "seconds": 2.0},
        {"event": "evaluation", "time": 1.0, "step": 1, "losses": {"lm loss": 4.0}, "seconds": 2.0},
        {"event": "save_failed", "time": 1.0, "step": 1, "reason": "no space"},
        {"event": "save", "time": 1.0, "step": 1, "seconds": 0.5, "write_seconds": 3.0, "bytes": 1024},
        {"event": "stop", "time": 1.0, "step": 2, "reason": "finished"},
    ]


def test_a_resume_has_the_previous_step_and_the_changes(events, recorder):
    recorder.on_train_start(context(10))
    (row,) = read_event_rows(events)
    assert row == {
        "event": "resume",
        "time": 1.0,
        "step": 10,
        "recipe": "tiny",
        "seconds": 2.0,
        "previous_step": 12,
        "previous_time": 0.5,
        "changes": {"train.train_iters": [20, 30]},
    }
    assert parse_event(events.read_bytes()).starts_attempt


def test_an_exception_in_a_step_is_a_failed_stop(events, recorder):
    recorder.on_train_start(context(0))
    recorder.on_train_step_end(context(3))
    with pytest.raises(KeyError), recorder:
        raise KeyError
    assert list(read_event_rows(events))[-1] == {"event": "stop", "time": 1.0, "step": 3, "reason": "failed"}


def test_a_loop_that_leaves_early_has_stopped(events, recorder):
    with recorder:
        recorder.on_train_start(context(0))
        recorder.on_train_step_end(context(7))
    assert list(read_event_rows(events))[-1] == {"event": "stop", "time": 1.0, "step": 7}


def test_an_exception_after_training_fails_the_run(events, recorder):
    recorder.on_train_end(context(0, outcome=SimpleNamespace(reason="finished")))
    with pytest.raises(KeyError), recorder:
        raise KeyError
    assert list(read_event_rows(events)) == [{"event": "stop", "time": 1.0, "step": 0, "reason": "failed"}]


def test_training_that_ends_with_an_exception_has_no_outcome(events, recorder):
    with recorder:
        recorder.on_train_end(context(5))
    assert [row["reason"] for row in read_event_rows(events)] == ["failed"]


def test_a_run_that_never_started_has_no_events(events, recorder):
    with pytest.raises(KeyError), recorder:
        raise KeyError
    assert not events.exists()
