from types import SimpleNamespace

import pytest

from mb_loop import (
    Callback,
    CallbackContext,
    CallbackManager,
    LossPrinter,
    StepResult,
    UnknownEventError,
    normalize_callbacks,
)
from mb_loop.callbacks import EVENTS, EventDispatcher


class Two(Callback):
    def __init__(self, log):
        self.log = log

    def on_train_start(self, context):
        self.log.append("two")
        context.user_state["seen"] = True


def test_listeners_are_called_in_the_order_of_registration():
    log, manager = [], CallbackManager()
    manager.register("on_train_start", lambda context: log.append("one"))
    manager.add(Two(log))
    manager.register("on_train_start", lambda context: log.append("three"))
    manager.fire("on_train_start", CallbackContext(state=None, model=[], user_state=manager.user_state))
    assert log == ["one", "two", "three"]
    assert manager.user_state == {"seen": True}


def test_only_overridden_events_are_registered():
    callback = Two([])
    manager = CallbackManager([callback])
    assert {
        event: manager.list_callbacks(event) for event in manager.events if manager.has_callbacks(event)
    } == {"on_train_start": [callback.on_train_start]}


@pytest.mark.parametrize("method", ["list_callbacks", "has_callbacks"])
def test_listeners_of_an_unknown_event_are_an_error(method):
    with pytest.raises(UnknownEventError, match="there is no event 'on_train_begin'"):
        getattr(CallbackManager(), method)("on_train_begin")


def test_the_base_class_has_a_method_for_every_event():
    for event in EVENTS:
        assert getattr(Callback(), event)(CallbackContext(state=None, model=[])) is None


def test_an_unknown_event_lists_the_known_ones():
    with pytest.raises(UnknownEventError, match=r"'on_step'.*on_train_step_end"):
        CallbackManager().register("on_step", print)


def test_exceptions_propagate():
    manager = CallbackManager()
    manager.register("on_train_start", lambda context: [][0])
    with pytest.raises(IndexError):
        EventDispatcher(manager=manager, state=None, model=[])("on_train_start")


def test_the_context_of_a_step_repeats_its_result():
    seen = []
    manager = CallbackManager()
    manager.register("on_train_step_end", seen.append)
    result = StepResult(step=3, losses={"loss": 1.0}, grad_norm=2.0, skipped=True, samples=4)
    EventDispatcher(manager=manager, state="state", model=["chunk"], optimizer="o", scheduler="s")(
        "on_train_step_end", result=result
    )
    assert seen == [
        CallbackContext(
            state="state",
            model=["chunk"],
            optimizer="o",
            scheduler="s",
            loss_dict={"loss": 1.0},
            grad_norm=2.0,
            skipped_iter=True,
            result=result,
        )
    ]


def test_no_context_is_built_without_listeners():
    unreadable = SimpleNamespace()  # building a context reads the losses of the result
    events = EventDispatcher(manager=CallbackManager(), state=SimpleNamespace(), model=[])
    events("on_train_step_end", result=unreadable)
    events.manager.register("on_train_step_end", lambda context: None)
    with pytest.raises(AttributeError, match="losses"):
        events("on_train_step_end", result=unreadable)


def test_the_interval_of_lines_must_be_positive():
    with pytest.raises(ValueError, match=r"LossPrinter\.every: is 0, but it is a number of steps"):
        LossPrinter(every=0)


def test_a_class_without_the_base_class_receives_its_events():
    class WithoutBase:
        def on_train_end(self, context):
            handled.append(context.outcome)

    handled, state = [], None
    CallbackManager([WithoutBase()]).fire(
        "on_train_end", CallbackContext(state=state, model=[], outcome="it")
    )
    assert handled == ["it"]


def test_an_object_without_any_event_is_rejected():
    with pytest.raises(UnknownEventError, match="callbacks: dict handles no event"):
        CallbackManager([{}])


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (LossPrinter, "LossPrinter is a class, not an object"),
        (
            type("Mine", (Callback,), {"on_train_step_ends": print})(),
            r"Mine\.on_train_step_ends: .*mean on_train_step_end",
        ),
        (type("Two", (), {"on_train_end": print, "on_training_start": print})(), "mean on_train_start"),
    ],
)
def test_a_class_and_a_misspelled_event_are_rejected(callback, message):
    with pytest.raises(UnknownEventError, match=message):
        CallbackManager([callback])


def test_events_of_another_library_are_no_mistake():
    CallbackManager([type("Both", (Callback,), {"on_train_epoch_end": print, "on_train_begin": print})()])


def test_lists_of_callbacks_are_added_and_normalized():
    manager = CallbackManager()
    manager.add([LossPrinter(), [LossPrinter()]])
    assert len(manager._listeners["on_train_step_end"]) == 2
    assert normalize_callbacks(manager) is manager
    assert len(normalize_callbacks(LossPrinter())._listeners["on_train_step_end"]) == 1
    assert normalize_callbacks(None) is None
    assert normalize_callbacks([LossPrinter()]).has_callbacks("on_train_step_end")
