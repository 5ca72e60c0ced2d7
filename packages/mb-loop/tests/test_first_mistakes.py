"""What people write first: a module without a list, a loader without an end, a forward step that returns its loss."""

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.errors import DataExhaustedError, ForwardStepError  # noqa: E402


def run(forward_step, model, data, steps=3):
    """Train a model with the forward step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bridge_api.train(
        forward_step, model, optimizer, None, data, None, mb_loop.LoopState.of(train_iters=steps)
    )


def mean_loss(iterator, model):
    """Forward step of a model whose output is its loss."""
    return model(next(iterator)), lambda output: (output.mean(), {"loss": output.mean().detach()})


def test_a_module_needs_no_list():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    assert run(mean_loss, layers, iter([torch.ones(2, 4)] * 3)).step == 3


def test_a_loader_is_repeated():
    loader = torch.utils.data.DataLoader(torch.arange(8.0).reshape(2, 4), batch_size=1)
    assert run(mean_loss, torch.nn.Linear(4, 1), mb_loop.repeat(loader), steps=5).step == 5
    batches = mb_loop.repeat([1, 2])
    assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]


def test_a_loader_without_batches_is_an_error():
    with pytest.raises(DataExhaustedError, match="repeat: list has no batch"):
        next(mb_loop.repeat([]))


def test_a_loader_itself_is_an_error_that_names_the_function():
    loader = torch.utils.data.DataLoader(torch.ones(2, 4))
    for data in (loader, (iter(loader),)):  # iterators of several chunks are a list, as Megatron requires
        with pytest.raises(mb_loop.DataIteratorError, match=r"Write mb_loop\.repeat\(\.\.\.\) around it"):
            run(mean_loss, torch.nn.Linear(4, 1), data)


@pytest.mark.parametrize(
    ("forward_step", "message"),
    [
        (
            lambda iterator, model: model(next(iterator)).mean(),
            r"forward step: returned Tensor.*Write: return output, ",
        ),
        (lambda iterator, model: (model(next(iterator)), {}), "forward step: returned tuple"),
        (
            lambda iterator, model: (model(next(iterator)), lambda output: output.mean()),
            r"loss function: returned Tensor.*Write: return loss, \{'loss': ",
        ),
        (
            lambda iterator, model: (model(next(iterator)), lambda output: (output, {})),
            r"a loss \(\(2, 1\)\) and a report \(dict\)",
        ),
        (
            lambda iterator, model: (model(next(iterator)), lambda output: (output.mean().item(), {})),
            r"a loss \(float\) and",
        ),
        (
            lambda iterator, model: (model(next(iterator)), lambda output: (output.mean(), 5)),
            r"a report \(int\)",
        ),
        (
            lambda iterator, model: (model(next(iterator)), lambda output: (output.mean().detach(), {})),
            "a loss without a gradient",
        ),
    ],
)
def test_a_returned_loss_is_an_error_that_shows_the_line(forward_step, message):
    with pytest.raises(ForwardStepError, match=message):
        run(forward_step, torch.nn.Linear(4, 1), iter([torch.ones(2, 4)] * 3))


def test_a_single_callback_and_none_are_accepted(capsys):
    for callbacks in (mb_loop.LossPrinter(every=2), None):
        layer = torch.nn.Linear(4, 1)
        bridge_api.train(
            mean_loss,
            layer,
            torch.optim.SGD(layer.parameters(), lr=0.0),
            None,
            iter([torch.zeros(2, 4)] * 2),
            None,
            mb_loop.LoopState.of(train_iters=2),
            callbacks=callbacks,
        )
    assert capsys.readouterr().out.count("step 2: loss") == 1


def test_a_negative_number_of_steps_is_rejected():
    with pytest.raises(mb_loop.TrainSettingsError, match="train_iters: is -3"):
        run(mean_loss, torch.nn.Linear(4, 1), iter([]), steps=-3)
