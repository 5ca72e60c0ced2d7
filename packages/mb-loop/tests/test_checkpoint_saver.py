from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from mb_loop import CallbackManager, Checkpointer, SaveResult
from mb_loop.callbacks import EventDispatcher
from mb_loop.loop_state import CheckpointSection
from mb_loop.maintenance.checkpoint_saver import CheckpointSaver
from mb_loop.step.hooks import ForwardPreHooks


def end(step, *, non_persistent=False, written=True):
    return SaveResult(step=step, non_persistent=non_persistent, written=written)


@dataclass
class ScriptedCheckpointer(Checkpointer):
    """Checkpointer with predefined results: a list per call, for background and failed saves."""

    saves: list[list[SaveResult]] = field(default_factory=list)
    polls: list[list[SaveResult]] = field(default_factory=list)
    retries: list[bool] = field(default_factory=list)
    in_flight: bool = False
    lines: list[str] = field(default_factory=list)

    def save(self, step, *, non_persistent):
        self.lines.append(f"{step} non-persistent" if non_persistent else f"{step}")
        return self.saves.pop(0) if self.saves else [end(step, non_persistent=non_persistent)]

    @property
    def may_wait(self):
        return self.in_flight

    def wait(self):
        self.lines.append("wait for the previous save")
        return self.polls.pop(0) if self.polls else []

    def retry_due(self, *, blocking):
        return self.retries.pop(0) if self.retries else False

    def poll(self, *, blocking):
        self.lines.append("wait" if blocking else "poll")
        return self.polls.pop(0) if self.polls else []


def saver(writes, *, start_step=0, manager=None, **intervals):
    state = SimpleNamespace(train_state=SimpleNamespace(step=9))
    events = EventDispatcher(manager=manager or CallbackManager(), state=state, model=[])
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
    saver(writes, start_step=None).finish(10)
    assert writes.lines == ["7", "10"]


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


def test_a_save_that_continues_in_the_background_is_scheduled_after_the_previous_one_is_complete():
    writes, manager = ScriptedCheckpointer(saves=[[], [end(4)], [end(8)]]), CallbackManager()
    for name in ("scheduled", "save"):
        manager.register(
            f"on_checkpoint_{name}",
            lambda context, name=name: writes.lines.append(f"{name} {context.save.step}"),
        )
    saves = saver(writes, manager=manager)
    for step in (4, 6, 8):
        saves.save(step)
    assert writes.lines == ["4", "scheduled 4", "6", "save 4", "scheduled 6", "8", "save 8"]


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


def saver_with_all_events(writes):
    manager = CallbackManager()
    for name in ("start", "end", "save", "failed"):
        event = f"on_checkpoint_{name}"
        manager.register(
            event,
            lambda context, name=name: writes.lines.append(
                f"{name} {context.checkpoint_work or context.save.message}"
            ),
        )
    return saver(writes, manager=manager)


def failed(step):
    return SaveResult(step=step, non_persistent=False, written=False, message="disk full")


def test_work_that_holds_the_loop_is_enclosed_by_its_start_and_its_end():
    writes = ScriptedCheckpointer()
    saves = saver_with_all_events(writes)
    saves.poll()
    saves.save(4)
    writes.in_flight = True
    saves.poll()
    assert writes.lines == [
        "poll",
        *("start save", "4", "end save", "save None"),
        *("start finalize", "poll", "end finalize"),
    ]


def test_the_wait_for_a_save_in_flight_is_no_second_save():
    writes = ScriptedCheckpointer(polls=[[end(4)]], in_flight=True)
    saver_with_all_events(writes).save(6)
    assert writes.lines == [
        *("start finalize", "wait for the previous save", "end finalize", "save None"),
        *("start save", "6", "end save", "save None"),
    ]


def test_work_that_raises_has_an_end():
    writes = ScriptedCheckpointer(saves=[])
    writes.save = lambda step, *, non_persistent: 1 / 0
    with pytest.raises(ZeroDivisionError):
        saver_with_all_events(writes).save(4)
    assert writes.lines == ["start save", "end save"]


def test_a_failed_save_fires_its_event_and_the_current_step_is_saved_when_the_retry_is_due():
    writes = ScriptedCheckpointer(saves=[[failed(4)], [end(9)]], retries=[False, True])
    saves = saver_with_all_events(writes)
    saves.save(4)
    saves.poll()
    saves.poll()
    assert writes.lines[:4] == ["start save", "4", "end save", "failed disk full"]
    assert writes.lines[4:] == ["poll", "poll", "start save", "9", "end save", "save None"]
    assert saves.saved(9)


def test_a_retry_at_the_end_of_the_run_is_followed_by_one_more_blocking_poll():
    writes = ScriptedCheckpointer(retries=[True])
    saver(writes).poll(blocking=True)
    assert writes.lines == ["wait", "9", "wait"]


def test_a_save_in_flight_is_reported_before_the_next_save_which_may_raise():
    writes = ScriptedCheckpointer(polls=[[end(4)]], in_flight=True)
    writes.save = lambda step, *, non_persistent: 1 / 0
    saves = saver_with_events(writes)
    with pytest.raises(ZeroDivisionError):
        saves.save(6)
    assert writes.lines == ["wait for the previous save", "4 is complete"]
    assert saves.saved(4)
