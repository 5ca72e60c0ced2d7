from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection, ValidationSection  # noqa: E402


def evaluate(state, model, data=None, **keywords):
    return bridge_api.evaluate(
        tiny.forward_step, tiny.batches() if data is None else data, [model], state, **keywords
    )


def mean_loss(model, indices):
    """Return the mean of the losses of batches, without dropout."""
    model.eval()
    each = [(model(inputs) - targets).square().mean() for inputs, targets in map(tiny.batch, indices)]
    return torch.stack(each).mean().item()


def test_losses_are_averaged_over_all_batches():
    model, _ = tiny.make_model()
    state = mb_loop.LoopState.of(train_iters=1, global_batch_size=2, eval_iters=3)
    losses = evaluate(state, model)
    assert losses == {"loss": pytest.approx(mean_loss(model, range(6)), rel=1e-6)}
    assert state.train_state.consumed_valid_samples == 6


def test_token_losses_are_weighted():
    reports = iter([[20.0, 10.0], [120.0, 30.0]])

    def forward_step(iterator, model):
        return torch.zeros(()), lambda output: (output, {"lm loss": torch.tensor(next(reports))})

    state = mb_loop.LoopState.of(train_iters=1, eval_iters=2)
    assert bridge_api.evaluate(forward_step, None, [torch.nn.Linear(1, 1)], state) == {"lm loss": 3.5}


def fixed_reports(reports):
    """Return a forward step without a model that reports these losses, one for each microbatch."""
    reports = iter(reports)
    return lambda iterator, model: (torch.zeros(()), lambda output: (output, next(reports)))


def test_a_batch_counts_however_many_tokens_came_before():
    # in float32 neither 2.5 nor 1 changes a sum of that size
    reports = [[1e8, 5e7], *[[2.5, 1.0]] * 1000]
    state = mb_loop.LoopState.of(train_iters=1, eval_iters=len(reports))
    step = fixed_reports({"lm loss": torch.tensor(report)} for report in reports)
    losses = bridge_api.evaluate(step, None, [torch.nn.Linear(1, 1)], state)
    assert losses == {"lm loss": pytest.approx((1e8 + 2500) / (5e7 + 1000), rel=1e-12)}


@pytest.mark.parametrize("second", [["b", "a"], ["a"], ["a", "c"]])
def test_batches_that_report_other_losses_are_rejected(second):
    reports = [{name: torch.tensor(1.0) for name in names} for names in (["a", "b"], second)]
    state = mb_loop.LoopState.of(train_iters=1, eval_iters=2)
    with pytest.raises(
        mb_loop.LossShapeError, match=r"batch 1 of the evaluation reports .* the first one \['a', 'b'\]"
    ):
        bridge_api.evaluate(fixed_reports(reports), None, [torch.nn.Linear(1, 1)], state)


@pytest.mark.parametrize("kind", ["eval", "test"])
def test_a_loss_over_no_token_is_not_defined(kind):
    def forward_step(iterator, model):
        return torch.zeros(()), lambda output: (
            output,
            {"lm loss": torch.zeros(2), "other": torch.tensor([6.0, 3.0])},
        )

    state = mb_loop.LoopState.of(train_iters=1, eval_iters=2)
    name = {"eval": "validation", "test": "test"}[kind]
    with pytest.warns(UserWarning, match=f"^{name}: lm loss is not defined, because none of the tokens"):
        losses = bridge_api.evaluate(forward_step, None, [torch.nn.Linear(1, 1)], state, kind=kind)
    assert losses == {"other": 2.0}


def test_the_model_is_evaluated_without_gradients_and_returns_to_training_mode():
    seen = []

    def forward_step(iterator, model):
        seen.append((model.training, torch.is_grad_enabled()))
        return tiny.forward_step(iterator, model)

    model, _ = tiny.make_model()
    bridge_api.evaluate(
        forward_step, tiny.batches(), [model], mb_loop.LoopState.of(train_iters=1, eval_iters=1)
    )
    assert (seen, model.training) == ([(False, False)], True)


def test_the_model_returns_to_training_mode_after_an_error():
    model, _ = tiny.make_model()
    with pytest.raises(mb_loop.DataExhaustedError):
        evaluate(mb_loop.LoopState.of(train_iters=1, eval_iters=2), model, data=tiny.batches(end=1))
    assert model.training


@pytest.mark.parametrize("eval_iters", [None, 0])
def test_no_batches_mean_no_evaluation(eval_iters):
    model, _ = tiny.make_model()
    assert evaluate(mb_loop.LoopState.of(train_iters=1, eval_iters=eval_iters), model, data=iter(())) == {}


def test_evaluation_has_separate_batch_sizes():
    cfg = LoopConfig(
        train=TrainSection(micro_batch_size=1, global_batch_size=1),
        validation=ValidationSection(eval_iters=1, eval_global_batch_size=4, eval_micro_batch_size=2),
    )
    state, data = mb_loop.LoopState(cfg=cfg), tiny.batches()
    evaluate(state, tiny.make_model()[0], data=data)
    assert state.train_state.consumed_valid_samples == 4
    assert torch.equal(next(data)[0], tiny.batch(2)[0])


@pytest.mark.parametrize("eval_global_batch_size", [None, 5])
def test_the_training_batch_is_rounded_down_in_an_evaluation_too(eval_global_batch_size):
    cfg = LoopConfig(
        train=TrainSection(micro_batch_size=2, global_batch_size=5, decrease_batch_size_if_needed=True),
        validation=ValidationSection(eval_iters=1, eval_global_batch_size=eval_global_batch_size),
    )
    state = mb_loop.LoopState(cfg=cfg)
    evaluate(state, tiny.make_model()[0])
    assert state.train_state.consumed_valid_samples == 4


def test_a_test_has_separate_events():
    seen, manager = [], mb_loop.CallbackManager()
    for event in ("on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end", "on_eval_start"):
        manager.register(event, lambda context, event=event: seen.append((event, context.total_loss_dict)))
    losses = evaluate(
        mb_loop.LoopState.of(train_iters=1, eval_iters=1),
        tiny.make_model()[0],
        callbacks=manager,
        kind="test",
    )
    assert seen == [
        ("on_test_start", None),
        ("on_test_step_start", None),
        ("on_test_step_end", None),
        ("on_test_end", losses),
    ]


def test_results_are_written_between_dashes_and_returned():
    lines, model = [], tiny.make_model()[0]
    state = mb_loop.LoopState.of(train_iters=1, eval_iters=1)
    line = mb_loop.evaluate_and_print_results(
        "iteration 5", tiny.forward_step, tiny.batches(), [model], state, write=lines.append
    )
    assert line == mb_loop.validation_line("iteration 5", evaluate(state, model))
    assert lines == [f"{'-' * len(line)}\n{line}\n{'-' * len(line)}"]


def test_nothing_is_written_without_losses():
    def schedule(**arguments):
        return []

    line = mb_loop.evaluate_and_print_results(
        "x", tiny.forward_step, None, [], mb_loop.LoopState.of(train_iters=1, eval_iters=1),
        write=lambda text: 1 / 0, forward_backward_func=schedule,
    )  # fmt: skip
    assert line == ""


def whole_set(*numbers):
    return lambda: (tiny.batch(number) for number in numbers)


def test_sets_are_evaluated_completely_and_reported_by_name():
    cfg = LoopConfig(
        train=TrainSection(micro_batch_size=1, global_batch_size=1),
        validation=ValidationSection(full_validation=True, multiple_validation_sets=True),
    )
    sets = [
        mb_loop.ValidationSet(name="books", data=whole_set(0, 1, 2), batches=3),
        mb_loop.ValidationSet(name="code", data=whole_set(3), batches=1),
    ]
    model, state = tiny.make_model()[0], mb_loop.LoopState(cfg=cfg)
    losses = evaluate(state, model, data=sets)
    assert evaluate(state, model, data=sets) == losses  # each evaluation begins again
    model.eval()
    each = [(model(inputs) - targets).square().mean().item() for inputs, targets in map(tiny.batch, range(4))]
    assert losses == {
        "loss books": pytest.approx(sum(each[:3]) / 3),
        "loss code": pytest.approx(each[3]),
    }
    assert state.train_state.consumed_valid_samples == 8


@pytest.mark.parametrize("setting", ["full_validation", "multiple_validation_sets"])
def test_required_sets_must_be_passed(setting):
    cfg = LoopConfig(train=TrainSection(), validation=ValidationSection(eval_iters=1, **{setting: True}))
    with pytest.raises(mb_loop.ValidationSetError, match=f"{setting}=True"):
        evaluate(mb_loop.LoopState(cfg=cfg), tiny.make_model()[0])


def test_names_of_sets_must_be_unique():
    sets = [mb_loop.ValidationSet(data=tiny.batches, batches=1)] * 2
    with pytest.raises(mb_loop.ValidationSetError, match="has a name twice"):
        evaluate(mb_loop.LoopState.of(train_iters=1), tiny.make_model()[0], data=sets)


def test_a_stopped_evaluation_restores_everything():
    seen, manager, model = [], mb_loop.CallbackManager(), tiny.make_model()[0]
    manager.register("on_eval_end", lambda context: seen.append(context.total_loss_dict))
    up = iter([False, True])
    state = mb_loop.LoopState.of(train_iters=1, eval_iters=5)
    assert evaluate(state, model, callbacks=manager, stop_evaluation=lambda: next(up)) == {}
    assert (seen, model.training) == ([None], True)


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_stopped_evaluation_leaves_several_sets_at_the_position_of_a_complete_one(calls):
    cfg = LoopConfig(
        train=TrainSection(micro_batch_size=1, global_batch_size=2),
        validation=ValidationSection(eval_iters=3, multiple_validation_sets=True),
    )
    sets = [mb_loop.ValidationSet(name=name, data=tiny.batches, batches=3) for name in ("books", "code")]
    state, answers = mb_loop.LoopState(cfg=cfg), iter([*[False] * (calls - 1), True])
    state.train_state.consumed_valid_samples = 24
    assert evaluate(state, tiny.make_model()[0], data=sets, stop_evaluation=lambda: next(answers)) == {}
    assert state.train_state.consumed_valid_samples == 24 + 2 * 3 * 2


def test_a_run_whose_duration_passes_in_an_evaluation_saves_and_ends():
    saved, model = [], tiny.make_model()[0]

    class Saves(mb_loop.Checkpointer):
        def save(self, step, *, non_persistent):
            saved.append(step)
            return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

        def poll(self, *, blocking):
            return []

    now = iter(range(0, 600, 20))
    state = mb_loop.LoopState.of(train_iters=9, eval_iters=4, eval_interval=1, exit_duration_in_mins=1)
    outcome = bridge_api.train(
        tiny.forward_step, [model], torch.optim.SGD(model.parameters(), lr=0.1), None, tiny.batches(),
        tiny.batches(), state, checkpointer=Saves(), clock=lambda: float(next(now)),
    )  # fmt: skip
    assert (outcome.reason, outcome.step, saved, model.training) == ("duration", 1, [1], True)


def test_only_evaluating_writes_both_lines_and_makes_no_step():
    model, lines = tiny.make_model()[0], []
    cfg = LoopConfig(
        train=TrainSection(train_iters=5), validation=ValidationSection(eval_iters=2, skip_train=True)
    )
    state = mb_loop.LoopState(
        cfg=cfg, train_state=mb_loop.TrainState(step=3, do_train=True, do_valid=True, do_test=True)
    )
    outcome = bridge_api.train(tiny.forward_step, [model], None, None, None, None, state)
    assert (outcome.reason, outcome.step, outcome.saved) == ("skip_train", 3, False)
    parts = mb_loop.TrainParts(
        forward_step_func=tiny.forward_step, model=[model], valid_data_iterator=tiny.batches(),
        test_data_iterator=tiny.batches(start=50),
    )  # fmt: skip
    validation, test = mb_loop.evaluate_after_training(parts, state, write=lines.append)
    for line, name, first in ((validation, "validation", 0), (test, "test", 50)):
        beginning = f" validation loss at iteration 3 on {name} set | loss value: "
        assert line.startswith(f"{beginning}{mean_loss(model, (first, first + 1)):.6E} |")
    assert [line.split("\n")[1] for line in lines] == [validation, test]
    again, test = mb_loop.evaluate_after_training(parts, state, validated=True, write=None)
    assert (again, bool(test)) == ("", True)
    paused = []
    machine = SimpleNamespace(paused=lambda: nullcontext(paused.append(state.train_state.do_test)))
    mb_loop.evaluate_after_training(replace(parts, rerun_machine=machine), state, validated=True, write=None)
    assert paused == [True]
    state.train_state.do_valid = state.train_state.do_test = False
    assert mb_loop.evaluate_after_training(parts, state) == ("", "")


def test_validation_data_that_would_never_be_read_is_an_error():
    state = mb_loop.LoopState.of(train_iters=2, eval_iters=1, eval_interval=1)
    state.train_state.do_valid = False  # as of a checkpoint of a run without validation
    model, optimizer = tiny.make_model()
    parts = mb_loop.TrainParts(
        forward_step_func=tiny.forward_step, model=model, optimizer=optimizer,
        train_data_iterator=tiny.batches(), valid_data_iterator=tiny.batches(),
    )  # fmt: skip
    with pytest.raises(
        mb_loop.TrainSettingsError, match="do_valid of the counters is False, so it would never"
    ):
        mb_loop.train(parts, state)
    assert mb_loop.train(replace(parts, valid_data_iterator=None), state).step == 2
