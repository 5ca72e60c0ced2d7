"""events.jsonl: written line by line, read back, and completed after a crash."""

import json
import math

import pytest

from mb_metrics import EventLog, LastStep, read_event_rows, read_last_step, write_missing_stop
from mb_metrics.run.events import changed_code


def test_events_are_json_lines_with_their_time(tmp_path):
    events = EventLog(tmp_path / "events.jsonl", clock=lambda: 7.0)
    events.write("start", step=0)
    events.write("save", step=10)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert lines == [{"event": "start", "time": 7.0, "step": 0}, {"event": "save", "time": 7.0, "step": 10}]


def test_truncated_lines_and_other_values_are_skipped(tmp_path):
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "start"}\n[1]\n{"event": "sa\n{"event": "stop"}\n')
    assert [row["event"] for row in read_event_rows(events)] == ["start", "stop"]
    assert list(read_event_rows(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize(
    ("written", "appended"),
    [
        ([("start", 0), ("save", 10)], True),
        ([("start", 0), ("stop", 20)], False),
        ([("start", 0), ("stop", 20), ("resume", 20)], True),
        ([], False),
    ],
)
def test_the_stop_of_a_run_whose_processes_died_is_written_once(tmp_path, written, appended):
    events, metrics = tmp_path / "events.jsonl", tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 12, "time": 6.0}\n')
    log = EventLog(events, clock=lambda: 7.0)
    for event, step in written:
        log.write(event, step=step)
    reason = "rank 1 was killed by SIGKILL"
    for _ in range(2):
        write_missing_stop(events, metrics=metrics, message=reason, clock=lambda: 9.0)
    stop = {"event": "stop", "time": 9.0, "step": 12, "reason": "failed", "message": reason}
    assert list(read_event_rows(events))[len(written) :] == ([stop] if appended else [])


def test_without_metrics_the_stop_has_the_step_of_the_start(tmp_path):
    events = tmp_path / "events.jsonl"
    EventLog(events).write("resume", step=4)
    write_missing_stop(events, metrics=tmp_path / "metrics.jsonl", message="killed")
    assert [row["step"] for row in read_event_rows(events)] == [4, 4]


def test_the_last_complete_row_is_found_before_a_truncated_one(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "time": 5.0}\n{"step": 2, "time": 6.0}\n{"step": 3, "ti')
    assert read_last_step(metrics) == LastStep(step=2, time=6.0)
    assert read_last_step(tmp_path / "none.jsonl") is None
    metrics.write_text("[]\n")
    assert read_last_step(metrics) is None


def test_changed_code_names_both_sides_of_each_part_that_differs(tmp_path):
    events = tmp_path / "events.jsonl"
    assert changed_code(events, {"callbacks": ["mine.A"]}) == {}
    events.write_text(
        json.dumps({"event": "start", "code": {"callbacks": ["mine.A"], "forward_step": ["f"]}})
    )
    now = {"callbacks": ["mine.A"], "sinks": ["s"]}
    assert changed_code(events, now) == {"code.forward_step": (["f"], []), "code.sinks": ([], ["s"])}


def test_the_last_row_may_be_longer_than_the_tail_that_is_read(tmp_path):
    """As that of a step with the gradient norm of each parameter."""
    norms = {f"l2_norm/grad/layers.{number}": 1.0 for number in range(3000)}
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": step, "time": 5.0, **norms}) + "\n" for step in (1, 2)))
    assert metrics.stat().st_size > 2**17
    assert read_last_step(metrics) == LastStep(step=2, time=5.0)


def test_numbers_that_json_lacks_are_text(tmp_path):
    """A strict reader of JSON, such as jq, takes no NaN."""
    events = tmp_path / "events.jsonl"
    EventLog(events).write(
        "evaluation", losses={"a": math.nan, "b": 1.0}, seconds=math.inf, steps=[1, -math.inf]
    )
    (row,) = [json.loads(line, parse_constant=pytest.fail) for line in events.read_text().splitlines()]
    assert (row["losses"], row["seconds"]) == ({"a": "NaN", "b": 1.0}, "Infinity")
    assert row["steps"] == [1, "-Infinity"]
