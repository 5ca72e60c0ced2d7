"""The loop with a torch model, and with an optimizer that behaves as Megatron's."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.callbacks import EVENTS  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection, ValidationSection  # noqa: E402
from mb_loop.step.schedule import ScheduleError, forward_backward_no_pipelining  # noqa: E402


@dataclass
class MegatronLikeOptimizer:
    """Optimizer that skips the steps in `bad_steps`, as on overflow."""

    bad_steps: tuple[int, ...] = ()
    steps: int = 0
    param_groups: list = field(
        default_factory=lambda: [
            {"params": ["w"], "lr": 0.5},
            {"params": ["e"], "lr": 9.0, "is_decoupled_lr": True},
            {"params": [], "lr": 7.0},
        ]
    )

    def zero_grad(self):
        pass

    def step(self):
        self.steps += 1
        done = self.steps not in self.bad_steps
        return done, 1.25 if done else None, 3


@dataclass
class MegatronLikeScheduler:
    samples: int = 0

    def step(self, increment):
        self.samples += increment


@dataclass
class Saves(mb_loop.Checkpointer):
    steps: list = field(default_factory=list)

    def save(self, step, *, non_persistent):
        self.steps.append(step)
        return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

    def poll(self, *, blocking):
        return []


def train(state, *, model=None, optimizer=None, scheduler=None, data=None, valid=None, **keywords):
    if model is None:
        model, default_optimizer = tiny.make_model()
        optimizer = optimizer or default_optimizer
    parts = mb_loop.TrainParts(
        forward_step_func=tiny.forward_step,
        model=[model],
        optimizer=optimizer,
        scheduler=scheduler,
        train_data_iterator=tiny.batches() if data is None else data,
        valid_data_iterator=valid,
        **keywords,
    )
    return mb_loop.train(parts, state)


def test_a_run_to_the_last_step_returns_finished():
    saves, state = (
        Saves(),
        mb_loop.LoopState.of(train_iters=6, global_batch_size=2, save_interval=4, seq_length=10),
    )
    outcome = train(state, checkpointer=saves)
    assert outcome == mb_loop.TrainOutcome(
        reason="finished", message="finished all 6 steps", step=6, exit_code=0, saved=True
    )
    assert state.train_state == mb_loop.TrainState(step=6, consumed_train_samples=12, do_train=True)
    assert saves.steps == [4, 6]


def test_samples_of_different_lengths_have_their_average_tokens():
    results, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_end", lambda context: results.append(context.result))
    state = mb_loop.LoopState.of(train_iters=1, global_batch_size=4, seq_length=10)
    train(state, tokens_per_sample=2.3, callbacks=manager)
    assert [(result.samples, result.tokens) for result in results] == [(4, 9)]


def test_a_step_result_describes_the_step():
    results, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_end", lambda context: results.append(context.result))
    scheduler = MegatronLikeScheduler()
    train(
        mb_loop.LoopState.of(train_iters=2, micro_batch_size=2, global_batch_size=4, seq_length=10),
        optimizer=MegatronLikeOptimizer(bad_steps=(1,)),
        scheduler=scheduler,
        callbacks=manager,
    )
    assert [(r.step, r.skipped, r.grad_norm, r.num_zeros_in_grad, r.learning_rate) for r in results] == [
        (1, True, None, 3, 0.5),
        (2, False, 1.25, 3, 0.5),
    ]
    assert [(r.samples, r.tokens, list(r.losses)) for r in results] == [(4, 40, ["loss"])] * 2
    assert [(r.decoupled_learning_rate, r.max_attention_logit) for r in results] == [(9.0, None)] * 2
    assert scheduler.samples == 4


def test_torch_schedulers_step_once_a_step_and_the_rate_reported_is_the_one_used():
    model, optimizer = tiny.make_model()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_end", lambda context: rates.append(context.result.learning_rate))
    train(
        mb_loop.LoopState.of(train_iters=3),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        callbacks=manager,
    )
    assert rates == [0.01, 0.005, 0.0025]


def test_groups_without_a_separate_rate_report_none():
    optimizer = MegatronLikeOptimizer(param_groups=[{"params": [], "lr": 1.0}])
    result = mb_loop.train_step(
        tiny.forward_step,
        tiny.batches(),
        [tiny.make_model()[0]],
        optimizer,
        None,
        mb_loop.LoopState.of(train_iters=1),
    )
    assert result[1:] == (0, False, False, 0, 1.25, 3)


def test_a_step_runs_the_schedule_that_is_passed_by_position():
    calls = []

    def schedule(**arguments):
        calls.append(arguments["p2p_communicator"])
        return forward_backward_no_pipelining(**arguments)

    model, optimizer = tiny.make_model()
    state = mb_loop.LoopState.of(train_iters=1)
    parts = (tiny.forward_step, tiny.batches(), [model], optimizer, None, state, None, schedule, "p2p")
    mb_loop.train_step(*parts)
    assert calls == ["p2p"]


def test_gradients_are_those_of_the_complete_batch():
    model, _ = tiny.make_model()
    model.eval()  # no dropout, so that one pass over everything is an oracle
    state = mb_loop.LoopState.of(train_iters=1, global_batch_size=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses, skipped, *_ = mb_loop.train_step(
        tiny.forward_step, tiny.batches(), [model], optimizer, None, state
    )
    gradients = [parameter.grad.clone() for parameter in model.parameters()]

    model.zero_grad()
    inputs, targets = (
        torch.cat(parts) for parts in zip(*(tiny.batch(index) for index in range(3)), strict=True)
    )
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(losses, {"loss": loss.detach()})
    assert (skipped, state.train_state.step) == (0, 0)


def test_token_losses_are_divided_by_their_tokens():
    weight = torch.nn.Linear(1, 1, bias=False)

    def forward_step(iterator, model):
        def loss_function(output):
            return output, torch.tensor(4), {"lm loss": torch.stack([output.detach(), torch.tensor(4.0)])}

        return model.weight.sum() * next(iterator), loss_function

    forward_backward_no_pipelining(
        forward_step_func=forward_step, data_iterator=iter([8.0, 16.0]), model=[weight], num_microbatches=2
    )
    assert weight.weight.grad.item() == (8 / 4 + 16 / 4) / 2


def parameters_after(cut, *, steps=8):
    """Train, stop at `cut`, load the state into new objects, and resume."""
    torch.manual_seed(7)
    losses, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_end", lambda context: losses.append(context.result.losses["loss"].item()))
    model, optimizer = tiny.make_model()
    state = mb_loop.LoopState.of(train_iters=steps, global_batch_size=2, exit_interval=cut)
    train(state, model=model, optimizer=optimizer, callbacks=manager)
    if state.train_state.step < steps:
        stored = (
            model.state_dict(),
            optimizer.state_dict(),
            state.train_state.state_dict(),
            torch.get_rng_state(),
        )
        model, optimizer = tiny.make_model(seed=99)
        state = mb_loop.LoopState.of(train_iters=steps, global_batch_size=2)
        for target, values in zip((model, optimizer, state.train_state), stored, strict=False):
            target.load_state_dict(values)
        torch.set_rng_state(stored[3])
        data = tiny.batches(start=state.train_state.consumed_train_samples)
        train(state, model=model, optimizer=optimizer, data=data, callbacks=manager)
    return losses, [parameter.tolist() for parameter in model.parameters()]


@settings(max_examples=8, deadline=None)
@given(cut=st.integers(1, 8))
def test_a_resumed_run_is_bitwise_equal_to_an_uninterrupted_one(cut):
    assert parameters_after(cut) == parameters_after(8)


def test_events_of_a_complete_run_in_order():
    seen, manager = [], mb_loop.CallbackManager()
    state = mb_loop.LoopState.of(train_iters=2, eval_iters=2, eval_interval=2, save_interval=1)
    for event in EVENTS:
        manager.register(event, lambda context, event=event: seen.append(f"{event} {state.train_state.step}"))
    train(state, valid=tiny.batches(), checkpointer=Saves(), callbacks=manager)
    assert seen == [
        "on_train_start 0",
        "on_train_step_start 0",
        "on_train_microbatch 0",
        "on_before_optimizer_step 0",
        "on_train_step_end 1",
        "on_checkpoint_start 1",
        "on_checkpoint_end 1",
        "on_checkpoint_save 1",
        "on_train_step_start 1",
        "on_train_microbatch 1",
        "on_before_optimizer_step 1",
        "on_train_step_end 2",
        "on_eval_start 2",
        "on_eval_step_start 2",
        "on_eval_step_end 2",
        "on_eval_step_start 2",
        "on_eval_step_end 2",
        "on_eval_end 2",
        "on_checkpoint_start 2",
        "on_checkpoint_end 2",
        "on_checkpoint_save 2",
        "on_checkpoint_start 2",
        "on_checkpoint_end 2",
        "on_train_end 2",
    ]


@pytest.mark.parametrize(
    ("settings", "keywords", "expected"),
    [
        ({"exit_interval": 3}, {}, ("interval", 3)),
        ({"exit_duration_in_mins": 1}, {"clock": iter(range(0, 1000, 25)).__next__}, ("duration", 3)),
        ({}, {"stop_requested": lambda step: "SIGTERM on rank 0" if step == 4 else None}, ("signal", 4)),
    ],
)
def test_every_exit_saves_once_and_fires_on_train_end(settings, keywords, expected):
    saves, ends, manager = Saves(), [], mb_loop.CallbackManager()
    manager.register("on_train_end", lambda context: ends.append(context.outcome))
    outcome = train(
        mb_loop.LoopState.of(train_iters=9, save_interval=1, **settings),
        checkpointer=saves,
        callbacks=manager,
        **keywords,
    )
    reason, step = expected
    assert (outcome.reason, outcome.step, outcome.saved, outcome.exit_code) == (reason, step, True, 0)
    assert saves.steps == list(range(1, step + 1))
    assert ends == [outcome]


def test_on_train_end_is_fired_without_outcome_after_an_exception():
    ends, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_end", lambda context: ends.append(context.outcome))
    with pytest.raises(mb_loop.DataExhaustedError, match="ended within a batch of 2 microbatches"):
        train(
            mb_loop.LoopState.of(train_iters=9, global_batch_size=2),
            data=tiny.batches(end=5),
            callbacks=manager,
        )
    assert ends == [None]


def test_skipped_steps_consume_data_without_changing_the_weights():
    model, optimizer = tiny.make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    data = tiny.batches()
    state = mb_loop.LoopState.of(train_iters=2, global_batch_size=3, iterations_to_skip=[1, 2])
    skipped, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_skipped", lambda context: skipped.append(context.state.train_state.step))
    train(state, model=model, optimizer=optimizer, data=[data, None], callbacks=manager)
    assert skipped == [1, 2]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(next(data)[0], tiny.batch(6)[0])
    assert state.train_state.skipped_train_samples == 6


def test_data_that_ends_in_a_skipped_step_is_an_error():
    with pytest.raises(mb_loop.DataExhaustedError, match="iterations_to_skip"):
        train(mb_loop.LoopState.of(train_iters=3, iterations_to_skip=[1, 2]), data=tiny.batches(end=1))


def test_a_finished_run_makes_no_step_and_saves_nothing():
    saves, state = Saves(), mb_loop.LoopState.of(train_iters=5)
    state.train_state.step = 5
    assert train(state, checkpointer=saves).saved is False
    assert saves.steps == []


class AlwaysStops(mb_loop.Callback):
    def stop_requested(self, step):
        return "enough"


@pytest.mark.parametrize("stopped", [False, True], ids=["finished", "early_stop"])
def test_an_ended_run_that_is_resumed_from_a_non_persistent_checkpoint_saves_its_last_step(stopped):
    saves, state = Saves(), mb_loop.LoopState.of(train_iters=6 if stopped else 5)
    state.train_state.step = 5
    callbacks = [AlwaysStops()] if stopped else []
    outcome = train(state, checkpointer=saves, callbacks=callbacks, from_non_persistent=True)
    assert (outcome.saved, saves.steps) == (True, [5])


def test_scheduled_collections_and_synchronisations_do_not_change_the_run():
    section = TrainSection(
        train_iters=2,
        manual_gc=True,
        manual_gc_interval=1,
        train_sync_interval=1,
        empty_unused_memory_level=2,
    )
    assert train(mb_loop.LoopState(cfg=LoopConfig(train=section))).step == 2


def test_operations_are_counted_for_steps_that_were_made():
    state = mb_loop.LoopState.of(train_iters=4, global_batch_size=2, seq_length=10, iterations_to_skip=[2])
    train(state, flops=lambda result: 1e18 * result.tokens)
    assert state.train_state.floating_point_operations_so_far == 3 * 20 * 10**18


@settings(max_examples=10, deadline=None)
@given(
    wanted=st.integers(2, 9), skip=st.sets(st.integers(1, 6)), first=st.integers(1, 4), cut=st.integers(1, 6)
)
def test_counters_equal_hand_arithmetic_through_a_stop(wanted, skip, first, cut):
    """Two ramp-up stages, rounding down to a multiple of the microbatch, skipped steps, and a stop in between."""
    sizes = {
        "micro_batch_size": 2,
        "global_batch_size": 2 * wanted + 1,
        "decrease_batch_size_if_needed": True,
    }
    ramp = [2 * first + 1, 2 * (wanted - first), 12] if first < wanted else None
    state = mb_loop.LoopState.of(
        train_iters=6, rampup_batch_size=ramp, iterations_to_skip=sorted(skip), exit_interval=cut, **sizes
    )
    train(state, flops=lambda result: result.samples)
    train(state, flops=lambda result: result.samples, data=tiny.batches())

    hand = mb_loop.TrainState(do_train=True)
    while hand.step < state.train_state.step:
        size = 2 * first + 1 if ramp and hand.consumed_train_samples < 12 else 2 * wanted + 1
        hand.step += 1
        hand.consumed_train_samples += size - 1
        hand.skipped_train_samples += size if hand.step in skip else 1
        hand.floating_point_operations_so_far += 0 if hand.step in skip else size - 1
    assert state.train_state == hand


def test_no_last_step_is_an_error():
    with pytest.raises(mb_loop.TrainSettingsError, match="train_iters: is not set"):
        train(mb_loop.LoopState(cfg=LoopConfig(train=TrainSection())))


@pytest.mark.parametrize(("do_valid", "steps"), [(True, 0), (False, 2)])
def test_evaluation_batches_that_do_not_divide_are_rejected_before_the_first_step(do_valid, steps):
    cfg = LoopConfig(
        train=TrainSection(train_iters=2),
        validation=ValidationSection(eval_iters=1, eval_interval=2, eval_global_batch_size=0),
    )
    state = mb_loop.LoopState(cfg=cfg, train_state=mb_loop.TrainState(do_valid=do_valid))
    with pytest.raises(mb_loop.BatchSizeError) if do_valid else nullcontext():
        train(state)
    assert state.train_state.step == steps


def test_an_interval_without_multiples_is_rejected():
    with pytest.raises(mb_loop.TrainSettingsError, match="exit_interval: is -2"):
        train(mb_loop.LoopState.of(train_iters=4, exit_interval=-2))


def test_data_that_is_not_an_iterator_is_rejected_before_the_first_step():
    state = mb_loop.LoopState.of(train_iters=4, eval_iters=1, eval_interval=2)
    with pytest.raises(mb_loop.DataIteratorError, match="train_data_iterator: is of type range"):
        train(state, data=range(4), valid=tiny.batches())
    with pytest.raises(mb_loop.DataIteratorError, match="valid_data_iterator: is of type range"):
        train(state, valid=range(4))
    with pytest.raises(mb_loop.TrainSettingsError, match="valid_data_iterator: is None"):
        train(state)
    assert state.train_state.step == 0


def test_the_caller_may_limit_the_duration():
    state = mb_loop.LoopState.of(train_iters=4, exit_duration_in_mins=1)
    outcome = train(state, duration_stop_requested=lambda step: "time is up on rank 7" if step == 2 else None)
    assert (outcome.reason, outcome.step) == ("duration", 2)
    assert outcome.message == "stopped after step 2: time is up on rank 7"


def test_a_stop_request_ends_an_evaluation():
    batches, manager = [], mb_loop.CallbackManager()
    manager.register("on_eval_step_end", lambda context: batches.append(context.state.train_state.step))
    state = mb_loop.LoopState.of(train_iters=4, eval_iters=100, eval_interval=2)
    outcome = train(
        state,
        valid=tiny.batches(),
        callbacks=manager,
        stop_requested=lambda step: "SIGTERM on rank 0" if len(batches) >= 3 else None,
        stop_evaluation=lambda: len(batches) >= 3,
    )
    assert (batches, outcome.reason, outcome.step) == ([2, 2, 2], "signal", 2)


def test_several_ranks_need_a_group():
    with pytest.raises(mb_loop.ParallelSetupError, match="data_parallel_size=2"):
        train(mb_loop.LoopState.of(train_iters=1, data_parallel_size=2))


def test_the_settings_have_the_ranks_of_distributed_data_parallel():
    model, _ = tiny.make_model()
    wrapped = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    torch.nn.Module.__init__(wrapped)
    wrapped.module, wrapped.process_group = model, SimpleNamespace(size=lambda: 2)
    with pytest.raises(mb_loop.ParallelSetupError, match=r"is 1, .* 2 ranks"):
        train(mb_loop.LoopState.of(train_iters=1), model=wrapped)


def test_a_checkpointer_has_all_methods():
    with pytest.raises(mb_loop.TrainSettingsError, match="has no may_wait, wait, retry_due"):
        train(mb_loop.LoopState.of(train_iters=1), checkpointer=SimpleNamespace(save=None, poll=None))


def test_megatron_chunks_need_megatrons_schedule():
    model, _ = tiny.make_model()
    model.zero_grad_buffer = lambda: None
    with pytest.raises(mb_loop.ParallelSetupError, match="forward_backward_func"):
        train(mb_loop.LoopState.of(train_iters=1), model=model)


def test_the_schedule_without_pipelining_rejects_chunks():
    with pytest.raises(ScheduleError, match="2 chunks"):
        forward_backward_no_pipelining(
            forward_step_func=tiny.forward_step, data_iterator=None, model=[None, None], num_microbatches=1
        )


def test_megatrons_schedule_gets_the_arguments_it_takes():
    calls, model = [], tiny.make_model()[0]
    model.zero_grad_buffer = lambda: calls.append("zero_grad_buffer")

    def schedule(**arguments):
        arguments.pop("forward_step_func")
        calls.append(arguments)
        return []

    state = mb_loop.LoopState.of(train_iters=1, micro_batch_size=2, global_batch_size=8, seq_length=16)
    data = tiny.batches()
    train(
        state,
        model=model,
        data=data,
        optimizer=MegatronLikeOptimizer(),
        forward_backward_func=schedule,
        pg_collection="groups",
        p2p_communicator="p2p",
    )
    assert calls == [
        "zero_grad_buffer",
        {
            "data_iterator": data,
            "model": [model],
            "num_microbatches": 4,
            "seq_length": 16,
            "micro_batch_size": 2,
            "decoder_seq_length": 16,
            "forward_only": False,
            "p2p_communicator": "p2p",
            "pg_collection": "groups",
        },
    ]


def divide_in_place(*, forward_step_func, data_iterator, model, num_microbatches, **_):
    """Divide the loss as `forward_step_calc_loss` of Megatron's schedules does."""
    reports = []
    for _ in range(num_microbatches):
        output, loss_function = forward_step_func(data_iterator, *model)
        loss, report = loss_function(output)
        loss /= num_microbatches
        reports.append(report)
    return reports


def test_a_logged_loss_is_not_divided_with_the_loss():
    model, _ = tiny.make_model()
    model.eval()
    state = mb_loop.LoopState.of(train_iters=1, global_batch_size=4, eval_iters=1)
    parts = mb_loop.TrainParts(
        forward_step_func=tiny.forward_step,
        model=model,
        train_data_iterator=tiny.batches(),
        valid_data_iterator=tiny.batches(),
        forward_backward_func=divide_in_place,
        optimizer=MegatronLikeOptimizer(),
    )
    batch = mb_loop.StepBatch(samples=4, num_microbatches=4, micro_batch_size=1)
    trained = float(mb_loop.TrainStep(parts, state)(1, batch).losses["loss"])
    each = [(model(inputs) - targets).square().mean().item() for inputs, targets in map(tiny.batch, range(4))]
    assert [trained, mb_loop.evaluate(parts, state)["loss"]] == pytest.approx([sum(each) / 4] * 2, rel=1e-6)


def test_the_loop_never_synchronises_with_the_device(monkeypatch):
    def refuse(*_):
        raise AssertionError("read by the host")

    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    model, _ = tiny.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert train(mb_loop.LoopState.of(train_iters=3), model=model, optimizer=optimizer).step == 3


def test_loss_printer_prints_steps_and_validations():
    lines = []
    state = mb_loop.LoopState.of(train_iters=4, eval_iters=1, eval_interval=4)
    train(state, valid=tiny.batches(), callbacks=[mb_loop.LossPrinter(every=2, write=lines.append)])
    assert [line.rsplit(" ", 1)[0] for line in lines] == [
        "step 2: loss",
        "step 4: loss",
        "step 4, validation: loss",
    ]


@pytest.mark.parametrize("context", [{}, {"save_strategy": "torch_dist"}, None])
def test_a_run_that_is_to_be_saved_needs_a_checkpointer(context):
    state = mb_loop.LoopState.of(train_iters=2)
    state.cfg.checkpoint.save = "/x"
    model, optimizer = tiny.make_model()
    with pytest.raises(
        mb_loop.TrainSettingsError, match=r"checkpointer: there is none, but checkpoint\.save='/x' requires"
    ):
        bridge_api.train(
            tiny.forward_step,
            model,
            optimizer,
            None,
            tiny.batches(),
            None,
            state,
            checkpointing_context=context,
        )
    assert state.train_state.step == 0


def test_training_needs_an_optimizer():
    parts = mb_loop.TrainParts(forward_step_func=tiny.forward_step, model=tiny.make_model()[0])
    with pytest.raises(
        mb_loop.TrainSettingsError, match="optimizer: is None, so no step could change the model"
    ):
        mb_loop.train(parts, mb_loop.LoopState.of(train_iters=1))


def test_callbacks_of_training_and_evaluation_share_their_state():
    class Share(mb_loop.Callback):
        def on_train_start(self, context):
            context.user_state["seen"] = True

        def on_eval_start(self, context):
            shared.append(context.user_state)

    shared, state = [], mb_loop.LoopState.of(train_iters=2, eval_iters=1, eval_interval=1)
    train(state, valid=tiny.batches(), callbacks=[Share()])
    assert shared == [{"seen": True}] * 2


@pytest.mark.parametrize(
    ("interval", "stopped", "validated"), [(2, False, True), (3, False, False), (2, True, False)]
)
def test_the_outcome_has_whether_the_last_step_was_validated(interval, stopped, validated):
    state = mb_loop.LoopState.of(train_iters=4, eval_iters=2, eval_interval=interval)
    outcome = train(state, valid=tiny.batches(), stop_evaluation=lambda: stopped)
    assert (outcome.step, outcome.validated) == (4, validated)


def test_megatron_bridges_arguments_are_the_same_parts():
    def train_as(call):
        model, optimizer = tiny.make_model()
        state = mb_loop.LoopState.of(train_iters=3, eval_iters=1, eval_interval=2)
        call(model, optimizer, state)
        return [parameter.tolist() for parameter in model.parameters()], state.train_state

    assert train_as(lambda model, optimizer, state: train(
        state, model=model, optimizer=optimizer, valid=tiny.batches(50)
    )) == train_as(lambda model, optimizer, state: bridge_api.train(
        tiny.forward_step, [model], optimizer, None, tiny.batches(), tiny.batches(50), state
    ))  # fmt: skip


def test_an_interval_of_saves_that_is_not_resolved_is_an_error():
    state = mb_loop.LoopState.of(train_iters=2)
    state.cfg.checkpoint.save_interval = "auto"
    with pytest.raises(
        mb_loop.TrainSettingsError, match=r"checkpoint\.save_interval: is 'auto', but the loop knows"
    ):
        train(state)
