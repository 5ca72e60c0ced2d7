"""Checkpointer of the trainer with a scripted checkpoint manager."""

from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import mb_host

mb_host.install()

from mb_checkpoint import FailedSave, SavedCheckpoint, ScheduledSave  # noqa: E402
from mb_loop import SaveResult, TrainState  # noqa: E402
from mb_trainer.checkpointing import Saves  # noqa: E402

ROOT = Path("/checkpoints")


def saved(step):
    return SavedCheckpoint(path=ROOT / f"iter_{step:07d}", step=step, seconds=1.0)


def scheduled(step):
    return ScheduledSave(root=ROOT, step=step, seconds=0.1, staged_bytes=8)


def failed(step):
    return FailedSave(root=ROOT, step=step, message=f"no room at step {step}", seconds=1.0)


class Manager:
    """Stub of a checkpoint manager that returns given results from saves and from polls of background saves."""

    def __init__(self, saves, polls=()):
        self.saves, self.polls = list(saves), list(polls)

    def save(self, context, callback_manager=None):
        return self.saves.pop(0)

    def finalize_async_saves(self, state=None, blocking=False, terminate=False):
        return self.polls.pop(0) if self.polls else None


class Run:
    """Run with the state that the checkpointer reads; collects its messages and events."""

    def __init__(self, manager):
        self.lines, self.events, self.kept = [], [], []
        self.state = SimpleNamespace(cfg=SimpleNamespace(peft=None), train_state=TrainState())

        @contextmanager
        def pause():
            self.lines.append("metrics written")
            yield

        self.saves = Saves(
            manager,
            state=self.state,
            trainee=SimpleNamespace(chunks=[], optimizer=None, scheduler=None),
            groups=None,
            say=self.lines.append,
            events=lambda event, **fields: self.events.append((event, fields["step"])),
            pause=pause,
            whole=nullcontext,
            kept=lambda saved: self.kept.append(saved.step),
        )

    def save(self, step, *, non_persistent=False):
        self.state.train_state.step = step
        return self.saves.save(step, non_persistent=non_persistent)

    def poll(self, step, *, blocking=False):
        self.state.train_state.step = step
        return self.saves.poll(blocking=blocking)


def end(step, *, non_persistent=False, written=True):
    return SaveResult(step=step, non_persistent=non_persistent, written=written)


def test_a_save_ends_at_once_and_metrics_are_written_down_before():
    run = Run(Manager([saved(2)]))
    assert run.save(2) == [end(2)]
    assert run.lines == ["metrics written", f"  {saved(2).message}"]


def test_what_is_uploaded_is_lasting_and_whole():
    run = Run(Manager([saved(2), scheduled(4), failed(6), saved(8)], polls=[None, None, saved(4)]))
    run.save(2, non_persistent=True)
    for step in (4, 6, 8):
        run.save(step)
    assert run.kept == [4, 8]


def test_a_background_save_ends_when_it_is_found_done_or_before_the_next_one():
    run = Run(Manager([scheduled(2), scheduled(5), saved(7)], polls=[None, None, saved(2), None, failed(5)]))
    ends = [run.save(2, non_persistent=True), run.poll(3), run.save(5), run.poll(6), run.poll(7)]
    assert ends == [[], [], [end(2, non_persistent=True)], [], [end(5, written=False), end(7)]]
    assert run.events == [("save", 2), ("save_failed", 5), ("save", 7)]


def test_a_failure_is_said_once_and_the_step_that_is_saved_in_its_place_is_told():
    run = Run(Manager([failed(2), failed(2), saved(4)]))
    assert [run.save(2), run.poll(2), run.poll(3), run.poll(4)] == [
        [end(2, written=False)], [end(2, written=False)], [], [end(4)]
    ]  # fmt: skip
    assert [line for line in run.lines if "no room" in line] == ["error: no room at step 2"] * 2


def test_a_manager_of_ones_own_that_returns_nothing_has_saved():
    assert Run(Manager([None])).save(3) == [end(3)]
