from dataclasses import dataclass, field
from types import SimpleNamespace

from mb_loop import CallbackManager, SaveResult
from mb_loop.callbacks import EventDispatcher
from mb_loop.checkpoint_saver import CheckpointSaver
from mb_loop.hooks import ForwardPreHooks
from mb_loop.settings import CheckpointSection


def end(step, *, non_persistent=False, written=True):
    return SaveResult(step=step, non_persistent=non_persistent, written=written)


@dataclass
class ScriptedCheckpointer:
    """Checkpointer with predefined results: a list per call, for background and failed saves."""

    saves: list[list[SaveResult]] = field(default_factory=list)
    polls: list[list[SaveResult]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def save(self, step, *, non_persistent):
        self.lines.append(f"{step} non-persistent" if non_persistent else f"{step}")
        return self.saves.pop(0) if self.saves else [end(step, non_persistent=non_persistent)]

    def poll(self, *, blocking):
        self.lines.append("wait" if blocking else "poll")
        return self.polls.pop(0) if self.polls else []


def saver(writes, *, start_step=0, manager=None, **intervals):
    events = EventDispatcher(manager=manager or CallbackManager(), state=SimpleNamespace(), model=[])
    hooks = ForwardPreHooks([], used=False)
    return CheckpointSaver(
        writes, settings=CheckpointSection(**intervals), hooks=hooks, events=events, start_step=start_step
    )


def test_persistent_saves_take_precedence():
    writes = ScriptedCheckpointer()
    saves = saver(writes, save_interval=10, non_persistent_save_interval=5)
    for step in range(1, 21):
        saves.after_step(step, leaving=False)
    assert writes.lines == ["5 non-persistent", "10", "15 non-persistent", "20"]


def test_leaving_saves_the_step_once_as_a_persistent_checkpoint():
    writes = ScriptedCheckpointer()
    saves = saver(writes, save_interval=10, non_persistent_save_interval=3)
    saves.after_step(6, leaving=True)
    saves.save(6)
    saves.finish(6)
    assert writes.lines == ["6"]
    assert (saves.saved(6), saves.saved(5)) == (True, False)


def test_the_last_step_is_saved_without_an_interval_but_not_with_interval_0_or_without_steps():
    writes = ScriptedCheckpointer()
    saver(writes).finish(7)
    saver(writes, save_interval=0).finish(8)
    saver(writes, start_step=9).finish(9)
    assert writes.lines == ["7"]


def test_without_a_checkpointer_nothing_is_saved():
    saves = saver(None, save_interval=1)
    saves.poll(blocking=True)
    saves.after_step(1, leaving=True)
    assert not saves.saved(1)


def test_the_event_is_fired_after_the_save():
    writes, manager = ScriptedCheckpointer(), CallbackManager()
    manager.register("on_checkpoint_save", lambda context: writes.lines.append("event"))
    saves = saver(writes, manager=manager)
    saves.poll()
    saves.save(4)
    saves.poll(blocking=True)
    assert writes.lines == ["poll", "4", "event", "wait"]


def saver_with_events(writes):
    manager = CallbackManager()
    manager.register(
        "on_checkpoint_save", lambda context: writes.lines.append(f"{context.saved_step} is complete")
    )
    return saver(writes, manager=manager)


def test_a_background_save_fires_the_event_and_counts_once_it_is_complete():
    writes = ScriptedCheckpointer(saves=[[], [end(4)]], polls=[[], [end(6)]])
    saves = saver_with_events(writes)
    saves.save(4)
    saves.save(4)
    saves.poll()
    known = [saves.saved(4)]
    saves.save(6)
    known += [saves.saved(4), saves.saved(6)]
    saves.poll()
    assert writes.lines == ["4", "poll", "6", "4 is complete", "poll", "6 is complete"]
    assert [*known, saves.saved(6)] == [False, True, False, True]


def test_a_failed_save_fires_no_event_and_the_step_is_not_saved_until_a_retry_succeeds():
    writes = ScriptedCheckpointer(saves=[[end(4, written=False)]], polls=[[], [end(4)]])
    saves = saver_with_events(writes)
    saves.save(4)
    saves.save(4)
    saves.poll()
    assert (writes.lines, saves.saved(4)) == (["4", "poll"], False)
    saves.poll(blocking=True)
    assert (writes.lines[2:], saves.saved(4)) == (["wait", "4 is complete"], True)


def test_a_non_persistent_checkpoint_fires_the_event_and_does_not_count_as_saved():
    writes = ScriptedCheckpointer()
    saves = saver_with_events(writes)
    saves.save_now(4, non_persistent=True)
    assert (writes.lines, saves.saved(4)) == (["4 non-persistent", "4 is complete"], False)
