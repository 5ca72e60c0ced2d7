"""Counts in the summary of a run."""

import pytest

from mb_loop import CallbackContext, LoopState, StepResult, TrainOutcome
from mb_trainer.run_folder import RunFolder
from mb_trainer.summary import Summary


def evaluated(losses):
    """Return a summary that has received the end of an evaluation after step 7."""
    state = LoopState.of(train_iters=9)
    state.train_state.step = 7
    summary = Summary()
    summary.on_eval_end(CallbackContext(state=state, model=[], total_loss_dict=losses))
    return summary


def test_an_evaluation_that_the_time_ended_has_validated_nothing():
    assert [evaluated(losses).validated for losses in ({"lm loss": 2.0}, {}, None)] == [7, 7, None]


@pytest.mark.parametrize(
    ("checkpoints", "last"),
    [
        ("a/checkpoints", ["  checkpoints          a/checkpoints", "  resume with          mb pretrain"]),
        (None, ["  checkpoints          none (checkpoint.save is null)"]),
    ],
)
def test_only_existing_files_are_listed_and_resumed_from(tmp_path, checkpoints, last):
    folder = RunFolder(tmp_path)
    folder.metrics.touch()
    outcome = TrainOutcome(reason="signal", message="stopped", step=7, exit_code=0, saved=True)
    lines = Summary().lines(outcome, folder=folder, checkpoints=checkpoints, resume_command="mb pretrain")
    assert list(lines)[2:] == [f"  metrics              {folder.metrics}", *last]


def test_tokens_of_samples_that_differ_are_counted_on_the_average(tmp_path):
    result = StepResult(step=1, losses={}, learning_rate=0.1, samples=8, tokens=8 * 64)
    context = CallbackContext(state=LoopState.of(train_iters=9), model=[], result=result)
    for each, tokens in ((None, 512), (19.5, 156)):
        summary = Summary(tokens_per_sample=each)
        summary.on_train_step_end(context)
        lines = summary.lines(
            TrainOutcome(reason="finished", message="done", step=1, exit_code=0, saved=False),
            folder=RunFolder(tmp_path),
            checkpoints=None,
            resume_command=None,
        )
        assert f"1 steps, {tokens} tokens" in list(lines)[1]


def test_the_clock_stops_when_the_device_is_done(tmp_path):
    clock = [0.0]

    def finish_queued_work():
        clock[0] = 40.0  # the host enqueued the steps within a second

    summary = Summary(clock=lambda: clock[0], wait_for_device=finish_queued_work)
    result = StepResult(step=1, losses={}, learning_rate=0.1, samples=8, tokens=512)
    summary.on_train_step_end(CallbackContext(state=LoopState.of(train_iters=9), model=[], result=result))
    clock[0] = 1.0
    outcome = TrainOutcome(reason="finished", message="done", step=1, exit_code=0, saved=False)
    lines = summary.lines(outcome, folder=RunFolder(tmp_path), checkpoints=None, resume_command=None)
    assert "512 tokens in 40.0 s (13 tokens/s)" in list(lines)[1]
