"""Data in addition to losses, collected at the end of an evaluation."""

import pytest

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.evaluation.non_loss import NonLossData  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection, ValidationSection  # noqa: E402
from mb_loop.step.schedule import forward_backward_no_pipelining  # noqa: E402


def reports_inputs(iterator, model):
    """Report a loss, or the inputs of the microbatch if non-loss data is requested."""
    inputs, targets = next(iterator)

    def loss_function(outputs, non_loss_data=False):
        if non_loss_data:
            return inputs, model.training, torch.is_grad_enabled()
        loss = (outputs - targets).square().mean()
        return loss, {"loss": loss.detach()}

    return model(inputs), loss_function


def train(forward_step=reports_inputs, *, eval_iters=2, **keywords):
    """Make four steps with a validation of two batches after each second; return the weights and the state."""
    model, optimizer = tiny.make_model()
    state = mb_loop.LoopState.of(train_iters=4, global_batch_size=2, eval_iters=eval_iters, eval_interval=2)
    bridge_api.train(
        forward_step, [model], optimizer, None, tiny.batches(), tiny.batches(100), state, **keywords
    )
    return [parameter.tolist() for parameter in model.parameters()], state


def test_the_last_batch_is_repeated_and_passed_with_the_step_and_the_writer():
    processed = []
    train(process_non_loss_data_func=lambda *given: processed.append(given), non_loss_writer="writer")
    assert [(step, writer) for _, step, writer in processed] == [(2, "writer"), (4, "writer")]
    for (data, _, _), numbers in zip(processed, [(102, 103), (106, 107)], strict=True):
        for (inputs, training, with_gradients), number in zip(data, numbers, strict=True):
            assert torch.equal(inputs, tiny.batch(number)[0])
            assert (training, with_gradients) == (False, False)


def test_a_function_of_the_model_replaces_the_loss_function():
    processed = []
    train(
        tiny.forward_step,  # its loss function takes no non_loss_data
        non_loss_data_func=lambda chunks: (len(chunks), chunks[0].training),
        process_non_loss_data_func=lambda *given: processed.append(given),
        non_loss_writer="writer",
    )
    assert processed == [((1, False), 2, "writer"), ((1, False), 4, "writer")]


def test_a_function_of_the_model_alone_is_called_after_each_validation():
    steps = []
    _, state = train(tiny.forward_step, non_loss_data_func=lambda chunks: steps.append(len(steps)))
    assert (steps, state.train_state.step) == ([0, 1], 4)


def test_training_and_the_position_in_the_data_do_not_change():
    weights, state = train()
    others, other = train(process_non_loss_data_func=lambda *_: None, non_loss_writer="writer")
    assert (weights, state.train_state) == (others, other.train_state)


def test_data_is_processed_before_the_event_of_the_end():
    order, manager = [], mb_loop.CallbackManager()
    manager.register("on_eval_end", lambda context: order.append("end"))
    train(non_loss_data_func=lambda chunks: order.append("data"), callbacks=manager)
    assert order == ["data", "end"] * 2


def test_nothing_is_collected_in_a_stopped_evaluation():
    extra = mb_loop.NonLossData(collect=lambda chunks: 1 / 0)
    state = mb_loop.LoopState.of(train_iters=1, eval_iters=2)
    arguments = (reports_inputs, tiny.batches(), [tiny.make_model()[0]], state)
    assert bridge_api.evaluate(*arguments, non_loss=extra, stop_evaluation=lambda: True) == {}
    with pytest.raises(ZeroDivisionError):
        bridge_api.evaluate(*arguments, non_loss=extra)


def test_with_several_sets_the_last_one_with_batches_provides_the_data():
    cfg = LoopConfig(
        train=TrainSection(),
        validation=ValidationSection(full_validation=True, multiple_validation_sets=True),
    )
    sets = [
        mb_loop.ValidationSet(
            name=name, data=lambda number=number: tiny.batches(number, number + 1), batches=1
        )
        for name, number in {"books": 0, "code": 7}.items()
    ]
    sets.append(mb_loop.ValidationSet(name="too small", data=lambda: iter(()), batches=0))
    processed = []
    extra = mb_loop.NonLossData(process=lambda data, *_: processed.extend(data), writer="writer")
    mb_loop.evaluate_and_print_results(
        "x", reports_inputs, sets, [tiny.make_model()[0]], mb_loop.LoopState(cfg=cfg), write=None, non_loss=extra
    )  # fmt: skip
    assert [torch.equal(inputs, tiny.batch(7)[0]) for inputs, _, _ in processed] == [True]


def test_one_rank_without_a_writer_is_rejected():
    with pytest.raises(mb_loop.TrainSettingsError, match="is set without a writer"):
        train(process_non_loss_data_func=lambda *_: None)


def test_the_schedule_without_pipelining_runs_no_backward_pass_for_it():
    model, _ = tiny.make_model()
    found = forward_backward_no_pipelining(
        forward_step_func=reports_inputs,
        data_iterator=tiny.batches(),
        model=[model],
        num_microbatches=2,
        collect_non_loss_data=True,
    )
    assert [torch.equal(inputs, tiny.batch(number)[0]) for number, (inputs, *_) in enumerate(found)] == [
        True
    ] * 2
    assert all(parameter.grad is None for parameter in model.parameters())


def two_stages():
    """Evaluate a pipeline of two stages with Megatron's schedule; only the last rank has a writer."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    last = parallel_state.is_pipeline_last_stage()

    class Stage(torch.nn.Module):
        """Stage that doubles its input."""

        def __init__(self):
            super().__init__()
            self.config = TransformerConfig(
                num_layers=2, hidden_size=1, num_attention_heads=1,
                pipeline_model_parallel_size=2, pipeline_dtype=torch.float32,
            )  # fmt: skip

        def set_input_tensor(self, tensors):
            self.received = tensors[0]

        def forward(self, value):
            return 2 * (self.received if last else value)

    def forward_step(iterator, model):
        def loss_function(output, non_loss_data=False):
            return output.item() if non_loss_data else (output.sum(), {"loss": output.sum().detach()})

        value = torch.full((1, 1, 1), float(next(iterator)))
        return model(value), loss_function

    processed = []
    extra = mb_loop.NonLossData(process=lambda *given: processed.append(given), writer="w" if last else None)
    state = mb_loop.LoopState.of(train_iters=1, global_batch_size=2, eval_iters=2, seq_length=1)
    losses = bridge_api.evaluate(
        forward_step, iter(range(100)), [Stage()], state,
        forward_backward_func=get_forward_backward_func(), non_loss=extra,
    )  # fmt: skip
    parallel_state.destroy_model_parallel()
    return losses, processed


def test_all_stages_of_a_pipeline_repeat_the_batch(pool):
    assert pool.run(two_stages) == [({}, []), ({"loss": 6.0}, [([8.0, 12.0], 0, "w")])]


def test_the_writer_of_tensorboard_is_open_within_the_block(tmp_path):
    pytest.importorskip("tensorboard")
    with NonLossData.with_tensorboard(collect=None, process=print, folder=tmp_path) as data:
        data.writer.add_scalar("images", 1.0, 3)
    assert list(tmp_path.glob("events.out.*"))
    with NonLossData.with_tensorboard(collect=None, process=None, folder=tmp_path) as data:
        assert data.writer is None
