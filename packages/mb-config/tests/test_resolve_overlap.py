"""Overlap is set up by a section of another package; what it says is told, and what the user set stands."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from mb_config import Change, ConfigError, DistributedDataParallelConfig, runtime_config_update


@dataclass(frozen=True)
class Told:
    """A change as another package tells it."""

    field: str
    old: Any
    new: Any
    why: str = "because"
    rule: str = "O05"
    severity: str = "info"


@dataclass
class Overlap:
    """Overlap that wants gradients overlapped, and cannot overlap the model."""

    told: bool = True
    seen: dict[str, Any] = field(default_factory=dict)

    def setup(self, model, optimizer, ddp, *, transformer_engine=None, keep=()):
        self.seen = {"transformer_engine": transformer_engine, "keep": list(keep)}
        told = [Told("comm_overlap.tp_comm_overlap", True, False, "tp is 1", "O01", "warning")]
        if "ddp.overlap_grad_reduce" not in keep and not ddp.overlap_grad_reduce:
            ddp.overlap_grad_reduce = True
            told.append(Told("ddp.overlap_grad_reduce", False, True))
        return told if self.told else None


WISH = Change(
    field="comm_overlap.tp_comm_overlap",
    old=True,
    new=False,
    rule="O01",
    why="O01: tp is 1",
    severity="warning",
)


def overlap_changes(changes):
    return [change for change in changes if "overlap" in change.field]


def test_reasons_and_refusals_are_told(make):
    config = make(comm_overlap=Overlap())
    changes = overlap_changes(runtime_config_update(config, world_size=2))
    assert changes == [
        Change(field="ddp.overlap_grad_reduce", old=False, new=True, rule="O05", why="O05: because"),
        WISH,
    ]
    assert runtime_config_update(config, world_size=2) == [WISH]


def test_a_refusal_as_text_and_json():
    assert str(WISH) == "comm_overlap.tp_comm_overlap: True was asked for, False stands (O01: tp is 1)"
    assert WISH.to_dict()["severity"] == "warning"


def test_a_setup_that_tells_nothing_is_compared(make):
    changes = overlap_changes(runtime_config_update(make(comm_overlap=Overlap(told=False)), world_size=2))
    assert [(change.field, change.rule) for change in changes] == [
        ("ddp.overlap_grad_reduce", "comm_overlap")
    ]


def test_it_is_told_what_the_user_set_and_what_is_installed(make):
    config = make(comm_overlap=Overlap(), ddp=DistributedDataParallelConfig(overlap_grad_reduce=False))
    runtime_config_update(config, world_size=2, facts={"transformer_engine": True})
    assert config.comm_overlap.seen["transformer_engine"] is True
    assert "ddp.overlap_grad_reduce" in config.comm_overlap.seen["keep"]
    assert config.ddp.overlap_grad_reduce is False


class Stubborn:
    """Overlap that does not ask what the user set."""

    def setup(self, model, optimizer, ddp):
        ddp.overlap_grad_reduce = True


def test_a_value_that_was_set_by_hand_stands_and_the_wish_is_told(make):
    ddp = DistributedDataParallelConfig(overlap_grad_reduce=False)
    config = make(comm_overlap=Stubborn(), ddp=ddp)
    (change,) = overlap_changes(runtime_config_update(config, world_size=2))
    assert (change.field, change.old, change.new, change.severity) == (
        "ddp.overlap_grad_reduce",
        True,
        False,
        "warning",
    )
    assert ddp.overlap_grad_reduce is False


class Contradiction:
    """Overlap with wishes that exclude each other."""

    def setup(self, model, optimizer, ddp):
        raise ValueError("tp_comm_overlap: contradicts")


def test_what_setup_raises_is_not_hidden(make):
    with pytest.raises(ValueError, match="tp_comm_overlap: contradicts"):
        runtime_config_update(make(comm_overlap=Contradiction()), world_size=1)


def test_it_is_not_asked_about_a_layout_that_does_not_fit(make):
    config = make(comm_overlap=Contradiction())
    config.model.tensor_model_parallel_size = 3
    with pytest.raises(ConfigError, match="V030"):
        runtime_config_update(config, world_size=4)


class ForModels:
    """Overlap that writes to the model."""

    def setup(self, model, optimizer, ddp):
        model.tp_comm_overlap = model.tensor_model_parallel_size > 1
        model.overlap_p2p_comm = False


def test_a_model_that_is_a_mapping_is_written_too(make):
    model = {"tensor_model_parallel_size": 2, "num_layers": 2, "hidden_size": 8}
    config = make(model=model, comm_overlap=ForModels())
    changes = overlap_changes(runtime_config_update(config, world_size=2))
    assert [(change.field, change.old, change.new) for change in changes] == [
        ("model.tp_comm_overlap", False, True)
    ]
    assert model == {
        "tensor_model_parallel_size": 2,
        "num_layers": 2,
        "hidden_size": 8,
        "tp_comm_overlap": True,
    }
