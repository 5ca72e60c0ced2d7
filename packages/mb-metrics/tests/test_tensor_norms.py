"""Norms of all tensors of chosen steps."""

import json
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from mb_metrics.norms.gradients import GradientNorms, WeightNorms
from mb_metrics.norms.tensors import TensorNorms, build_tensor_norms


def context(step, optimizer=None):
    return SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=step)), optimizer=optimizer)


def make_step(norms, model, inputs, *, done):
    """Make one step of a loop that fires the events; `done` steps are completed."""
    norms.on_train_step_start(context(done))
    model(inputs).sum().backward()
    norms.on_before_optimizer_step(context(done))
    norms.on_train_step_end(context(done + 1))


@pytest.fixture
def model():
    """Return two layers, the second of which has known weights."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False))
    torch.nn.init.ones_(layers[1].weight)
    return layers


def norms_of(model, file, steps=(2,)):
    return TensorNorms(
        steps, chunks=[model], gradient_norms=GradientNorms(model), weight_norms=WeightNorms(model), file=file
    )


def test_a_chosen_step_is_written_with_the_norms_of_every_tensor(tmp_path, model):
    file, inputs = tmp_path / "tensor_norms.jsonl", torch.randn(5, 3)
    make_step(norms_of(model, file), model, inputs, done=1)
    row = json.loads(file.read_text())
    outputs = model(inputs)
    assert row["step"] == 2
    assert row["weights"]["1.weight"] == pytest.approx(math.sqrt(8))
    assert row["gradients"]["0.bias"] == pytest.approx(model[0].bias.grad.norm().item())
    assert row["outputs"]["1"] == {
        "rms": pytest.approx(outputs.square().mean().sqrt().item()),
        "max_abs": pytest.approx(outputs.abs().max().item()),
        "non_finite": 0,
    }
    assert row["output_gradients"]["1"] == {"rms": 1.0, "max_abs": 1.0, "non_finite": 0}


def test_gradients_are_written_without_the_loss_scale(tmp_path, model):
    file, norms = tmp_path / "tensor_norms.jsonl", norms_of(model, tmp_path / "tensor_norms.jsonl")
    norms.on_train_step_start(context(1))
    (8 * model(torch.ones(5, 3)).sum()).backward()
    norms.on_before_optimizer_step(context(1, SimpleNamespace(get_loss_scale=lambda: torch.tensor(8.0))))
    norms.on_train_step_end(context(2, SimpleNamespace(get_loss_scale=lambda: torch.tensor(4.0))))
    row = json.loads(file.read_text())
    assert row["gradients"]["0.bias"] == 5 * 2 * math.sqrt(4)  # 5 rows, 2 outputs with weights of 1, 4 biases
    assert row["output_gradients"] == {
        "0": {"rms": 2.0, "max_abs": 2.0, "non_finite": 0},
        "1": {"rms": 1.0, "max_abs": 1.0, "non_finite": 0},
    }


def test_microbatches_are_combined(tmp_path, model):
    file = tmp_path / "tensor_norms.jsonl"
    norms = norms_of(model, file)
    norms.on_train_step_start(context(1))
    for size in (2.0, 4.0):
        model(torch.full((1, 3), size)).sum().backward()
    norms.on_before_optimizer_step(context(1))
    norms.on_train_step_end(context(2))
    both = torch.cat([model[0](torch.full((1, 3), size)) for size in (2.0, 4.0)])
    assert json.loads(file.read_text())["outputs"]["0"]["rms"] == pytest.approx(
        both.square().mean().sqrt().item()
    )


def test_elements_that_are_not_finite_are_counted_and_not_added(tmp_path, model):
    file = tmp_path / "tensor_norms.jsonl"
    with torch.no_grad():
        model[0].bias[0] = math.nan
    make_step(norms_of(model, file), model, torch.zeros(1, 3), done=1)
    row = json.loads(file.read_text())
    assert row["outputs"]["0"]["non_finite"] == 1
    assert row["weights"]["0.bias"] == "NaN"


def test_other_steps_have_no_hooks_and_write_nothing(tmp_path, model):
    file = tmp_path / "tensor_norms.jsonl"
    norms = norms_of(model, file)
    make_step(norms, model, torch.zeros(1, 3), done=1)
    make_step(norms, model, torch.zeros(1, 3), done=2)
    assert (len(file.read_text().splitlines()), len(model[0]._forward_hooks)) == (1, 0)


def test_nothing_is_built_without_steps():
    assert (
        build_tensor_norms(
            SimpleNamespace(logger=SimpleNamespace(tensor_norms_steps=None)), None, folder=None
        )
        is None
    )
