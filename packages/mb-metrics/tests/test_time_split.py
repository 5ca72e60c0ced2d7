"""Time of a run by activity: each second has one activity."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import event, row, steady, write_run

from mb_metrics.report.run_reader import read_run, read_run_from_log
from mb_metrics.report.time_split import KINDS, split_time


def split(folder, rows, events=()):
    return split_time(read_run(write_run(folder, rows, events)))


def known(found):
    return {kind: round(seconds, 6) for kind, seconds in found.seconds.items() if seconds}


def test_a_quiet_run(tmp_path):
    rows = [*steady(1, 5, 4), row(5, 10, lm_loss_validation=1.0), *steady(6, 10, 11)]
    events = [event("start", 0, step=0, seconds=20), event("save", 17, step=10), event("stop", 17, step=10)]
    found = split(tmp_path, rows, events)
    assert known(found) == {"starting": 23.0, "training": 10.0, "evaluating": 2.0, "saving": 2.0}
    assert (found.goodput, found.median_step_seconds) == (10 / 37, 1.0)
    assert [(one.kind, one.step, one.seconds) for one in found.waits] == [
        ("evaluation", 5, 2.0),
        ("save", 10, 2.0),
    ]
    assert [(one.kind, one.seconds) for one in found.attempts] == [("stopped", 37.0)]


def test_an_event_may_record_its_duration(tmp_path):
    events = [event("start", 0), event("save", 13, step=10, seconds=0.5), event("stop", 13, step=10)]
    assert known(split(tmp_path, steady(1, 10, 1), events)) == {"training": 10.0, "saving": 0.5, "other": 2.5}


def test_an_evaluation_that_is_both_row_and_event_is_one(tmp_path):
    rows = [*steady(1, 3, 1), row(3, 5, lm_loss_validation=1.0)]
    found = split(tmp_path, rows, [event("start", 0), event("evaluation", 5.25, step=3), event("stop", 6)])
    assert [(one.kind, one.seconds) for one in found.waits] == [("evaluation", 2.25)]


def test_a_stop_and_a_resume(tmp_path):
    rows = [*steady(1, 5, 1), *steady(6, 10, 101)]
    events = [
        event("start", 0),
        event("stop", 5, step=5),
        event("resume", 100, step=5, seconds=15),
        event("stop", 106),
    ]
    found = split(tmp_path, rows, events)
    assert known(found) == {"training": 10.0, "starting": 15.0, "other": 1.0, "stopped": 80.0}
    assert len(found.attempts) == 2


def test_a_kill_loses_what_came_after_the_checkpoint_and_the_time_until_the_restart(tmp_path):
    rows = [
        *steady(1, 5, 1),
        *steady(6, 10, 101),
    ]  # steps 6 and 7 of the first attempt are no longer in the file
    events = [event("start", 0, step=0), event("save", 6, step=5), event("resume", 100, step=5, seconds=15)]
    found = split(tmp_path, rows, events)
    assert known(found) == {"training": 10.0, "saving": 1.0, "lost": 79.0, "starting": 15.0}
    assert [one.kind for one in found.attempts] == ["killed", "killed"]


def test_a_resume_may_record_what_it_discarded(tmp_path):
    rows = [*steady(1, 5, 1), *steady(6, 10, 101)]
    resume = event("resume", 100, step=5, seconds=15, previous_step=9, previous_time=1_700_000_010.0)
    found = split(tmp_path, rows, [event("start", 0, step=0), event("save", 6, step=5), resume])
    assert known(found) == {"training": 10.0, "saving": 1.0, "lost": 4.0, "stopped": 75.0, "starting": 15.0}
    assert found.redone_steps == 4


def test_events_after_the_checkpoint_that_was_resumed_are_lost(tmp_path):
    rows = [*steady(1, 5, 1), *steady(6, 10, 101)]
    events = [
        event("start", 0, step=0),
        event("save", 6, step=5),
        event("evaluation", 9, step=7),
        event("stop", 10, step=8),
        event("resume", 100, step=5),
    ]
    found = split(tmp_path, rows, events)
    assert known(found) == {"training": 10.0, "saving": 1.0, "lost": 4.0, "stopped": 90.0}
    assert (found.redone_steps, [one.kind for one in found.waits]) == (3, ["save"])


def test_a_save_that_is_resumed_two_starts_later_is_kept(tmp_path):
    """Steps 1 to 20, resumed to 30, and then from 10: the steps after the save of 10 are lost, not the save."""
    rows = [*steady(1, 10, 1), *steady(11, 15, 201)]
    events = [
        event("start", 0, step=0),
        event("save", 12, step=10),
        event("save", 24, step=20),
        event("stop", 24, step=20),
        event("resume", 100, step=20),
        event("save", 112, step=30),
        event("stop", 112, step=30),
        event("resume", 200, step=10),
        event("stop", 205, step=15),
    ]
    found = split(tmp_path, rows, events)
    assert known(found) == {"training": 15.0, "saving": 2.0, "lost": 24.0, "stopped": 164.0}
    assert ([one.step for one in found.waits], found.redone_steps) == ([10], 20)


def test_rows_that_go_back_are_lost_without_any_event(tmp_path):
    found = split(tmp_path, [*steady(1, 8, 1), *steady(5, 10, 20)])
    assert (found.redone_steps, known(found)) == (4, {"training": 9.0, "lost": 4.0, "starting": 11.0})


def test_a_clock_that_was_set_back_an_hour_is_no_restart(tmp_path):
    rows = [*steady(1, 5, 1), *steady(6, 10, 6 - 3600)]
    events = [
        event("start", 0, step=0),
        event("save", 6.5 - 3600, step=6, seconds=0.5),
        event("stop", 11 - 3600, step=10),
    ]
    found = split(tmp_path, rows, events)
    assert known(found) == {"training": 8.5, "saving": 0.5, "other": 1.0}
    assert [(one.kind, one.seconds) for one in found.attempts] == [("stopped", 10.0)]


def test_rows_of_every_tenth_step(tmp_path):
    rows = [
        row(step, step * 0.5 + 5 * (step > 10), lm_loss=1.0, **{"iteration-time": 0.5})
        for step in (10, 20, 30)
    ]
    assert known(split(tmp_path, rows)) == {"training": 10.0, "other": 5.0}
    plain = [row(step, step * 0.5, lm_loss=1.0) for step in (10, 20, 30)]
    assert split(tmp_path, plain).median_step_seconds == 0.5


def test_a_log_without_times_of_evaluations(tmp_path):
    stamp = "[2024-01-01 00:00:{:02d}] iteration {:8d}/ 40 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0 |"
    lines = [
        stamp.format(5, 10),
        "validation loss at iteration 10 | lm loss value: 3.0 | lm loss PPL: 1.0 |",
        stamp.format(20, 20),
        "  successfully saved checkpoint from iteration      20 to /c",
        stamp.format(27, 30),
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    assert known(split_time(read_run_from_log(path))) == {"training": 10.0, "evaluating": 10.0, "saving": 2.0}


def test_nothing_is_known_of_a_run_without_times(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lm loss": 1.0}\n{"step": 2, "lm loss": 1.0}\n')
    found = split_time(read_run(tmp_path))
    assert (found.goodput, found.median_step_seconds, found.attempts) == (None, None, [])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["row", "evaluation", "save", "stop", "resume", "note"]), st.floats(0, 100)
        ),
        min_size=2,
        max_size=30,
    )
)
def test_every_second_has_one_reason(tmp_path_factory, moments):
    rows, events, now, step = [], [event("start", 0, step=0)], 0.0, 0
    for kind, seconds in moments:
        now += seconds
        step += kind == "row"
        if kind == "row":
            rows.append(row(step, now, lm_loss=1.0))
        else:
            events.append(event(kind, now, step=step))
    found = split(tmp_path_factory.mktemp("run"), rows, events)
    assert sum(found.seconds.values()) == pytest.approx(now, abs=1e-4)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert math.isclose(found.running_seconds, sum(found.seconds[kind] for kind in KINDS))
