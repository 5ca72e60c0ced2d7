"""Early stopping: the rule, against Lightning's and by hand, and the end of a run."""

import math
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop import CallbackContext, EarlyStopping  # noqa: E402


def stops_after(stopping, values):
    """Return the number of the evaluation after which training ends; None: it does not."""
    return next((number for number, value in enumerate(values, 1) if stopping.update(value)), None)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("min_delta", [0, 1, 2])
@pytest.mark.parametrize("patience", [1, 2, 4])
def test_the_rule_is_that_of_lightning(mode, min_delta, patience):
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    random = torch.Generator().manual_seed(patience * 10 + min_delta)
    for _ in range(30):
        values = torch.randint(0, 8, (20,), generator=random).double()
        theirs = callbacks.EarlyStopping("x", patience=patience, min_delta=min_delta, mode=mode)
        expected = next(
            (n for n, value in enumerate(values, 1) if theirs._evaluate_stopping_criteria(value)[0]), None
        )
        ours = EarlyStopping("x", patience=patience, min_delta=min_delta, mode=mode)
        assert stops_after(ours, values.tolist()) == expected


def test_nan_is_no_improvement():
    assert stops_after(EarlyStopping("x", patience=2), [math.nan, 3.0, math.nan, math.nan]) == 4
    assert stops_after(EarlyStopping("x", patience=2, mode="max"), [math.nan, math.nan]) == 2


@dataclass
class Saves(mb_loop.Checkpointer):
    steps: list = field(default_factory=list)

    def save(self, step, *, non_persistent):
        self.steps.append(step)
        return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

    def poll(self, *, blocking):
        return []


LOSSES = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.0, 10: 2.0, 12: 2.5, 14: 2.5, 16: 1.0}
"""Validation loss after each second step: with a patience of 2, training ends after step 8; of 3, not at all."""


def train(stopping, *, steps=16, counters=None, saves=None):
    """Train a model whose validation losses are `LOSSES`."""
    state = mb_loop.LoopState.of(train_iters=steps, eval_iters=1, eval_interval=2)
    if counters is not None:
        state.train_state.load_state_dict(counters)
    model = torch.nn.Linear(1, 1)

    def forward_step(iterator, model):
        value = 1.0 if model.training else LOSSES[state.train_state.step]
        return model(next(iterator)), lambda out: (out.sum(), {"loss": torch.tensor(value)})

    data = iter(lambda: torch.ones(1, 1), None)
    parts = mb_loop.TrainParts(
        forward_step_func=forward_step,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data_iterator=data,
        valid_data_iterator=data,
        callbacks=[stopping],
        checkpointer=saves,
    )
    return mb_loop.train(parts, state), state.train_state


def test_a_run_ends_and_is_saved_when_its_metric_stops_improving():
    saves = Saves()
    outcome, _ = train(EarlyStopping("loss", patience=2), saves=saves)
    assert (outcome.reason, outcome.step, outcome.exit_code, outcome.saved) == ("early_stop", 8, 0, True)
    assert outcome.message == (
        "stopped after step 8: loss has not improved on 3 in 2 evaluations (patience 2)"
    )
    assert saves.steps == [8]


@pytest.mark.parametrize(("eval_iters", "eval_interval"), [(0, 2), (1, None)])
def test_a_run_without_evaluations_is_rejected(eval_iters, eval_interval):
    """Nothing would ever stop it."""
    state = mb_loop.LoopState.of(train_iters=2, eval_iters=eval_iters, eval_interval=eval_interval)
    model = torch.nn.Linear(1, 1)
    parts = mb_loop.TrainParts(
        forward_step_func=lambda iterator, model: (model(next(iterator)), lambda out: (out.sum(), {})),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data_iterator=iter(lambda: torch.ones(1, 1), None),
        callbacks=[EarlyStopping("loss", patience=2)],
    )
    with pytest.raises(mb_loop.TrainSettingsError, match="early stopping: no evaluation has 'loss'"):
        mb_loop.train(parts, state)
    assert state.train_state.step == 0


def test_a_run_whose_metric_improves_in_time_is_finished():
    outcome, _ = train(EarlyStopping("loss", patience=3))
    assert (outcome.reason, outcome.step) == ("finished", 16)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_resumed_run_stops_where_an_uninterrupted_one_does(cut):
    first = EarlyStopping("loss", patience=2)
    _, counters = train(first, steps=cut)
    resumed = EarlyStopping("loss", patience=2)
    resumed.load_state_dict(first.state_dict())
    outcome, _ = train(resumed, counters=counters.state_dict())
    assert (outcome.reason, outcome.step) == ("early_stop", 8)
    whole = EarlyStopping("loss", patience=2)
    train(whole)
    assert resumed.state_dict() == whole.state_dict()


def test_a_run_that_is_resumed_after_its_early_stop_makes_no_step():
    stopping = EarlyStopping("loss", patience=2)
    _, counters = train(stopping)
    again = EarlyStopping("loss", patience=2)
    again.load_state_dict(stopping.state_dict())
    outcome, counters = train(again, counters=counters.state_dict())
    assert (outcome.reason, outcome.step, outcome.saved, counters.step) == ("early_stop", 8, False, 8)


def test_a_callback_of_the_user_ends_training():
    class Target(mb_loop.Callback):
        def stop_requested(self, step):
            return "the target is reached" if step == 3 else None

    outcome, _ = train(Target())
    assert (outcome.reason, outcome.step) == ("early_stop", 3)
    assert outcome.message == "stopped after step 3: the target is reached"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience is 0, but it is a number of evaluations"),
        ({"patience": True}, "patience is True"),
        ({"patience": 1, "min_delta": -1.0}, "min_delta is -1.0, but it is the size of a change"),
        ({"patience": 1, "min_delta": math.nan}, "min_delta is nan"),
        ({"patience": 1, "mode": "least"}, 'mode is \'least\'. Set it to "min" or "max"'),
    ],
)
def test_invalid_settings_are_rejected(options, message):
    with pytest.raises(mb_loop.TrainSettingsError) as caught:
        EarlyStopping("loss", **options)
    assert message in str(caught.value)


def test_an_unknown_metric_is_named_at_the_first_evaluation():
    with pytest.raises(mb_loop.TrainSettingsError, match=r"no metric 'accuracy' \(it has 'loss'\)"):
        train(EarlyStopping("accuracy", patience=2))


def test_an_evaluation_that_was_stopped_or_lacks_the_metric_later_does_not_count():
    stopping = EarlyStopping("loss", patience=1)
    for losses in ({"loss": 1.0}, None, {}):
        stopping.on_eval_end(CallbackContext(state=None, model=[], total_loss_dict=losses))
    assert (stopping.best, stopping.without_improvement) == (1.0, 0)


@pytest.mark.parametrize(("mode", "best"), [("max", math.inf), ("min", -math.inf)])
def test_an_infinite_value_is_one_of_the_metric(mode, best):
    stopping = EarlyStopping("reward", patience=1, mode=mode)
    stopping.on_eval_end(CallbackContext(state=None, model=[], total_loss_dict={"reward": best}))
    assert (stopping.best, stopping.stop_requested(1)) == (best, None)
    stopping.on_eval_end(CallbackContext(state=None, model=[], total_loss_dict={"reward": best}))
    assert stopping.stop_requested(2) is not None


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_run_without_any_number_has_a_reason_to_stop(value):
    stopping = EarlyStopping("reward", patience=1, mode="max")
    stopping.on_eval_end(CallbackContext(state=None, model=[], total_loss_dict={"reward": value}))
    assert stopping.best is None
    assert stopping.stop_requested(1) == "reward was NaN or infinite in 1 evaluations (patience 1)"


def test_the_state_of_another_metric_is_rejected():
    state = EarlyStopping("loss", patience=2).state_dict()
    with pytest.raises(mb_loop.EarlyStoppingStateError, match=r"is of 'loss' \(min\), not of 'loss' \(max\)"):
        EarlyStopping("loss", patience=2, mode="max").load_state_dict(state)
    with pytest.raises(mb_loop.EarlyStoppingStateError, match="lacks best"):
        EarlyStopping("loss", patience=2).load_state_dict({k: v for k, v in state.items() if k != "best"})
