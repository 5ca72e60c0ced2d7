from dataclasses import dataclass, field
from types import SimpleNamespace

from mb_loop import CallbackManager
from mb_loop.callbacks import Events
from mb_loop.hooks import ForwardPreHooks
from mb_loop.saves import Saver
from mb_loop.settings import CheckpointSection


@dataclass
class Writes:
    lines: list[str] = field(default_factory=list)

    def save(self, step, *, temporary):
        self.lines.append(f"{step} temporary" if temporary else f"{step}")

    def poll(self, *, blocking):
        self.lines.append("wait" if blocking else "poll")


def saver(writes, *, start_step=0, manager=None, **intervals):
    events = Events(manager=manager or CallbackManager(), state=SimpleNamespace(), model=[])
    hooks = ForwardPreHooks([], used=False)
    return Saver(
        writes, settings=CheckpointSection(**intervals), hooks=hooks, events=events, start_step=start_step
    )


def test_a_lasting_save_wins_over_a_temporary_one():
    writes = Writes()
    saves = saver(writes, save_interval=10, non_persistent_save_interval=5)
    for step in range(1, 21):
        saves.after_step(step, leaving=False)
    assert writes.lines == ["5 temporary", "10", "15 temporary", "20"]


def test_leaving_saves_the_step_once_and_for_good():
    writes = Writes()
    saves = saver(writes, save_interval=10, non_persistent_save_interval=3)
    saves.after_step(6, leaving=True)
    saves.save(6)
    saves.finish(6)
    assert writes.lines == ["6"]
    assert (saves.saved(6), saves.saved(5)) == (True, False)


def test_the_end_is_saved_without_an_interval_but_not_with_interval_0_or_when_nothing_was_done():
    writes = Writes()
    saver(writes).finish(7)
    saver(writes, save_interval=0).finish(8)
    saver(writes, start_step=9).finish(9)
    assert writes.lines == ["7"]


def test_without_a_checkpointer_nothing_is_saved():
    saves = saver(None, save_interval=1)
    saves.poll(blocking=True)
    saves.after_step(1, leaving=True)
    assert not saves.saved(1)


def test_a_save_is_announced_after_it_was_made():
    writes, manager = Writes(), CallbackManager()
    manager.register("on_checkpoint_save", lambda context: writes.lines.append("announced"))
    saves = saver(writes, manager=manager)
    saves.poll()
    saves.save(4)
    saves.poll(blocking=True)
    assert writes.lines == ["poll", "4", "announced", "wait"]
