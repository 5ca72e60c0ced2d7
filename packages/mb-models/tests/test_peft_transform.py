"""A user-defined method with `transform` alone."""

from types import SimpleNamespace

import pytest
from torch import nn

from mb_models.errors import PeftError
from mb_models.peft.config import PEFT


def model():
    block = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return nn.ModuleDict({"first": block, "again": block, "last": nn.Linear(2, 2)})


class Scaled(nn.Linear):
    """A layer with a trained factor of its output."""

    def __init__(self, layer):
        super().__init__(2, 2)
        self.weight, self.bias, self.factor = (
            layer.weight,
            layer.bias,
            nn.Parameter(layer.weight.new_ones(())),
        )


class Scaling(PEFT):
    def transform(self, module, name=None, prefix=None):
        seen.append((name, prefix))
        return Scaled(module) if name == "0" else module


seen: list[tuple[str | None, str | None]] = []


def test_each_module_is_transformed_once_with_its_name_and_its_parents():
    seen.clear()
    chunk, section = model(), Scaling()
    assert section(chunk) is chunk
    assert seen == [(None, None), ("first", ""), ("0", "first"), ("1", "first"), ("last", "")]
    trained = {name for name, value in chunk.named_parameters() if value.requires_grad}
    assert trained == {"first.0.factor"}
    stored = ("0.factor", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert [name for name in chunk.state_dict() if section.is_adapter(name)] == [
        f"{block}.{name}" for block in ("first", "again") for name in stored
    ]
    section(model(), training=False)
    assert not Scaling().is_adapter("first.0.factor")


def test_freeze_model_decides_what_remains_trained():
    class Biases(Scaling):
        def freeze_model(self, model, training=True):
            for name, value in ((n, v) for chunk in model for n, v in chunk.named_parameters()):
                value.requires_grad_(training and name == "last.bias")

    chunk = model()
    Biases().install([chunk])
    assert [name for name, value in chunk.named_parameters() if value.requires_grad] == [
        "first.0.factor",
        "last.bias",
    ]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda module, name, prefix: None, r"transform returns NoneType for the model\. Return the module"),
        (lambda module, name, prefix: None if name == "0" else module, r"returns NoneType for first\.0\."),
        (
            lambda module, name, prefix: nn.Identity() if name is None else module,
            "transform replaces the model",
        ),
    ],
)
def test_a_transform_returns_modules_and_leaves_the_model(transform, message):
    custom = type("Custom", (PEFT,), {"transform": staticmethod(transform)})
    with pytest.raises(PeftError, match=message):
        custom().install([model()])


def test_a_name_is_trained_in_every_chunk_or_none():
    chunks = [model(), model()]
    chunks[0].config = SimpleNamespace(trains=True)

    class First(PEFT):
        def transform(self, module, name=None, prefix=None):
            if hasattr(module, "config"):
                module["last"].requires_grad_(True)
            return module

    with pytest.raises(
        PeftError, match=r"last\.bias is trained in one chunk of the model and frozen in another"
    ):
        First().install(chunks)
