"""Resolving of communication overlap: changes of the section are reported, and values of the user are kept."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from mb_config import Change, ConfigError, DistributedDataParallelConfig, runtime_config_update


@dataclass(frozen=True)
class ReportedChange:
    """A change as the section of another package reports it."""

    field: str
    old: Any
    new: Any
    why: str = "because"
    rule: str = "O05"
    severity: str = "info"


@dataclass
class Overlap:
    """Overlap section that enables gradient overlap and rejects tensor-parallel overlap."""

    reports: bool = True
    seen: dict[str, Any] = field(default_factory=dict)

    def setup(self, model, optimizer, ddp, *, transformer_engine=None, keep=()):
        self.seen = {"transformer_engine": transformer_engine, "keep": list(keep)}
        changes = [ReportedChange("comm_overlap.tp_comm_overlap", True, False, "tp is 1", "O01", "warning")]
        if "ddp.overlap_grad_reduce" not in keep and not ddp.overlap_grad_reduce:
            ddp.overlap_grad_reduce = True
            changes.append(ReportedChange("ddp.overlap_grad_reduce", False, True))
        return changes if self.reports else None


REJECTED = Change(
    field="comm_overlap.tp_comm_overlap",
    old=True,
    new=False,
    rule="O01",
    why="O01: tp is 1",
    severity="warning",
)


def overlap_changes(changes):
    return [change for change in changes if "overlap" in change.field]


def test_reasons_and_rejected_requests_are_returned(make):
    config = make(comm_overlap=Overlap())
    changes = overlap_changes(runtime_config_update(config, world_size=2))
    assert changes == [
        Change(field="ddp.overlap_grad_reduce", old=False, new=True, rule="O05", why="O05: because"),
        REJECTED,
    ]
    assert runtime_config_update(config, world_size=2) == [REJECTED]


def test_a_rejected_request_as_text_and_json():
    assert str(REJECTED) == "comm_overlap.tp_comm_overlap: True is rejected, False is kept (O01: tp is 1)"
    assert REJECTED.to_dict()["severity"] == "warning"


def test_changes_of_a_setup_without_records_are_found_by_comparison(make):
    changes = overlap_changes(runtime_config_update(make(comm_overlap=Overlap(reports=False)), world_size=2))
    assert [(change.field, change.rule) for change in changes] == [
        ("ddp.overlap_grad_reduce", "comm_overlap")
    ]


def test_setup_receives_the_fields_of_the_user_and_the_installed_packages(make):
    config = make(comm_overlap=Overlap(), ddp=DistributedDataParallelConfig(overlap_grad_reduce=False))
    runtime_config_update(config, world_size=2, facts={"transformer_engine": True})
    assert config.comm_overlap.seen["transformer_engine"] is True
    assert "ddp.overlap_grad_reduce" in config.comm_overlap.seen["keep"]
    assert config.ddp.overlap_grad_reduce is False


class OverwritingOverlap:
    """Overlap section that ignores the fields of the user."""

    def setup(self, model, optimizer, ddp):
        ddp.overlap_grad_reduce = True


def test_a_value_set_explicitly_is_kept_and_the_request_is_reported_as_rejected(make):
    ddp = DistributedDataParallelConfig(overlap_grad_reduce=False)
    config = make(comm_overlap=OverwritingOverlap(), ddp=ddp)
    (change,) = overlap_changes(runtime_config_update(config, world_size=2))
    assert (change.field, change.old, change.new, change.severity) == (
        "ddp.overlap_grad_reduce",
        True,
        False,
        "warning",
    )
    assert ddp.overlap_grad_reduce is False


class Contradiction:
    """Overlap section with settings that exclude each other."""

    def setup(self, model, optimizer, ddp):
        raise ValueError("tp_comm_overlap: contradicts")


def test_errors_of_setup_are_raised(make):
    with pytest.raises(ValueError, match="tp_comm_overlap: contradicts"):
        runtime_config_update(make(comm_overlap=Contradiction()), world_size=1)


def test_setup_is_not_called_for_a_layout_that_does_not_fit(make):
    config = make(comm_overlap=Contradiction())
    config.model.tensor_model_parallel_size = 3
    with pytest.raises(ConfigError, match="V030"):
        runtime_config_update(config, world_size=4)


class ForModels:
    """Overlap section that modifies the model."""

    def setup(self, model, optimizer, ddp):
        model.tp_comm_overlap = model.tensor_model_parallel_size > 1
        model.overlap_p2p_comm = False


def test_a_model_that_is_a_mapping_is_modified(make):
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
