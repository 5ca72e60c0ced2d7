"""Replay of a step, with a trainer that only writes metrics."""

import json
import sys

import pytest

from mb_verify import (
    MetricDifference,
    plan_replay,
    replay_as_data,
    replay_as_text,
    run_replay,
)
from mb_verify.errors import ReplayRequestError, VerificationError

TRAINER = """
import json, sys
folder, steps, loss = sys.argv[1], [int(step) for step in sys.argv[2].split(",")], float(sys.argv[3])
for step in steps:
    row = {"step": step, "lm loss": step + loss, "grad-norm": 0.5, "iteration-time": 9.0}
    print(json.dumps(row), file=open(folder + "/metrics.jsonl", "a"))
    norms = {"step": step, "weights": {"module.a.weight": 1.0}, "gradients": {"module.a.weight": 2.0 * step}}
    output = {"rms": 1.0, "max_abs": 2.0, "non_finite": 3 if step == 4 else 0}
    norms |= {"outputs": {"module.a": output}, "output_gradients": {}}
    print(json.dumps(norms), file=open(folder + "/tensor_norms.jsonl", "a"))
"""


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run of five steps."""
    rows = [
        {"step": step, "lm loss": step + 0.5, "grad-norm": 0.5, "iteration-time": 1.0, "world-size": 2.0}
        for step in range(1, 6)
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    # the third step was made twice: the run was resumed
    lines = [*rows[:3], *rows[2:]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def replayed(plan, folder, steps, *, loss=0.5):
    folder.mkdir()
    command = [sys.executable, "-c", TRAINER, str(folder), ",".join(map(str, steps)), str(loss)]
    return run_replay(plan, command, folder=folder, log=lambda _line: None)


def test_it_begins_at_the_newest_checkpoint_before_the_step(run):
    plan = plan_replay(run, 4, checkpoints={2, 4})
    assert (plan.start, plan.processes, list(plan.recorded)) == (2, 2, [3, 4])


def test_the_processes_are_those_of_the_start_before_the_step(run):
    starts = [{"event": "start", "step": 0, "world_size": 4}, {"event": "resume", "step": 3, "world_size": 8}]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in starts))
    assert [plan_replay(run, step, checkpoints=()).processes for step in (3, 4)] == [4, 8]


def test_without_a_checkpoint_it_begins_at_the_first_step(run):
    assert list(plan_replay(run, 2, checkpoints={2, 4}).recorded) == [1, 2]


def test_a_step_that_was_not_recorded_is_rejected(run):
    with pytest.raises(ReplayRequestError, match=r"has no step 9; it has recorded steps 1 to 5"):
        plan_replay(run, 9, checkpoints=())


def test_steps_without_metrics_are_rejected(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[4:]))
    with pytest.raises(ReplayRequestError, match=r"has no row of step 3, .* checkpoint of step 2"):
        plan_replay(run, 5, checkpoints={2})


@pytest.mark.parametrize("line", ["[1]", "{", '{"step": "a"}'])
def test_a_damaged_file_is_rejected(run, line):
    (run / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(ReplayRequestError, match="line 1 is not a JSON object with a step"):
        plan_replay(run, 1, checkpoints=())


def test_a_folder_without_metrics_is_rejected(tmp_path):
    with pytest.raises(ReplayRequestError, match=r"metrics.jsonl: no such file"):
        plan_replay(tmp_path, 1, checkpoints=())


def test_equal_metrics_are_equal_and_times_are_not_compared(run, tmp_path):
    made = replayed(plan_replay(run, 4, checkpoints={2}), tmp_path / "again", [3, 4])
    assert (made.differences, made.names) == ((), ("lm loss", "grad-norm"))
    assert "equal to the run, bit for bit: 2 steps (3 to 4)" in replay_as_text(made)


def test_the_first_difference_is_named_with_both_values(run, tmp_path):
    made = replayed(plan_replay(run, 4, checkpoints={2}), tmp_path / "again", [3, 4], loss=0.25)
    assert made.differences[0] == MetricDifference(step=3, name="lm loss", recorded=3.5, replayed=3.25)
    assert "lm loss, step 3: 3.5 recorded, 3.25 in the replay" in replay_as_text(made)
    assert replay_as_data(made)["equal"] is False


def test_tensors_are_listed_with_their_change_from_the_step_before(run, tmp_path):
    made = replayed(plan_replay(run, 4, checkpoints={2}), tmp_path / "again", [3, 4])
    text = replay_as_text(made, full=True)
    assert "NaN or infinite elements first in the output of a (1 outputs)" in text
    row = next(line.split() for line in text.splitlines() if " gradient " in line)
    assert row == ["8", "1.33", "gradient", "a.weight"]


def test_a_value_after_one_that_is_not_finite_has_no_factor(run, tmp_path):
    made = replayed(plan_replay(run, 4, checkpoints={2}), tmp_path / "again", [3, 4])
    made.tensor_norms[3]["gradients"]["module.a.weight"] = "NaN"
    row = next(line.split() for line in replay_as_text(made).splitlines() if " gradient " in line)
    assert row == ["8", "gradient", "a.weight"]


def test_a_replay_that_made_other_steps_is_an_error(run, tmp_path):
    with pytest.raises(VerificationError, match="made no step 4"):
        replayed(plan_replay(run, 4, checkpoints={2}), tmp_path / "again", [3])


def test_a_failed_replay_is_an_error_with_its_last_lines(run, tmp_path):
    plan = plan_replay(run, 4, checkpoints={2})
    with pytest.raises(VerificationError, match=r"exit code 3\.\nno memory"):
        run_replay(
            plan,
            [sys.executable, "-c", "import sys; print('no memory'); sys.exit(3)"],
            folder=tmp_path,
            log=str,
        )
