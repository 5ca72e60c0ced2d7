"""NVRx itself, where it is installed: the client of its monitors, and what precedes a restart."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("nvidia_resiliency_ext", reason="nvidia-resiliency-ext is not installed")


def test_a_monitor_without_the_sections_is_refused_with_the_option_that_is_missing(monkeypatch):
    from mb_resilience import NoMonitorError
    from mb_resilience.nvrx import PatientClient, RankMonitorClient

    def connect(self):
        self.cfg = SimpleNamespace(rank_section_timeouts={"step": 3.0})

    monkeypatch.setattr(RankMonitorClient, "init_workload_monitoring", connect)
    with pytest.raises(NoMonitorError, match="no time-out for setup, checkpointing"):
        PatientClient().init_workload_monitoring()


def test_before_a_restart_transformer_engine_releases_its_buffers_where_it_is_imported(monkeypatch):
    from mb_resilience.restart_nvrx import _destroy_userbuffers

    released = []
    base = SimpleNamespace(destroy_ub=lambda: released.append(True))
    _destroy_userbuffers()
    monkeypatch.setitem(
        sys.modules, "transformer_engine.pytorch", SimpleNamespace(module=SimpleNamespace(base=base))
    )
    _destroy_userbuffers()
    assert released == [True]
