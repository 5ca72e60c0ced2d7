"""NVRx, if it is installed: the client of its monitors, and the steps before a restart."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("nvidia_resiliency_ext", reason="nvidia-resiliency-ext is not installed")

from nvidia_resiliency_ext.fault_tolerance.utils import write_object_to_ipc_socket


def test_monitor_without_the_sections_is_rejected_with_the_missing_option(monkeypatch):
    from mb_resilience import NoMonitorError
    from mb_resilience.fault_tolerance.nvrx_monitor import MinimumTimeoutClient, RankMonitorClient

    def connect(self):
        self.cfg = SimpleNamespace(rank_section_timeouts={"step": 3.0})

    monkeypatch.setattr(RankMonitorClient, "init_workload_monitoring", connect)
    with pytest.raises(NoMonitorError, match="no timeout for setup, checkpointing"):
        MinimumTimeoutClient().init_workload_monitoring()


def test_a_rank_continues_when_its_monitor_has_ended(caplog):
    from mb_resilience.fault_tolerance.nvrx_monitor import MinimumTimeoutClient, RankMonitorClientError

    client = MinimumTimeoutClient()
    client.rank_monitor_socket, monitor = socket.socketpair()
    client.is_initialized, client.rank_info = True, SimpleNamespace(global_rank=0)
    write_object_to_ipc_socket("no", monitor)
    with pytest.raises(RankMonitorClientError, match="rejects a message: no"):
        client.start_section("step")
    monitor.close()
    client.start_section("step")
    client.end_section("step")
    client.shutdown_workload_monitoring()
    assert [each.getMessage()[:57] for each in caplog.records if each.levelname == "WARNING"] == [
        "ft.enable_ft_package: the monitor of this rank has ended "
    ]


def test_user_buffers_are_released_before_a_restart_if_transformer_engine_is_imported(monkeypatch):
    from mb_resilience.restarts.nvrx import _destroy_userbuffers

    released = []
    base = SimpleNamespace(destroy_ub=lambda: released.append(True))
    _destroy_userbuffers()
    monkeypatch.setitem(
        sys.modules, "transformer_engine.pytorch", SimpleNamespace(module=SimpleNamespace(base=base))
    )
    _destroy_userbuffers()
    assert released == [True]


HANGS_ONCE = """
import sys, time
from pathlib import Path
from mb_resilience import SectionReporter
from mb_resilience.fault_tolerance.nvrx_monitor import monitor_client

folder = Path(sys.argv[1])
attempts, completed = [*folder.glob("attempt*")], folder / "completed.txt"
(folder / f"attempt{len(attempts)}").touch()
first = int(completed.read_text()) if completed.exists() else 0
with SectionReporter(monitor_client(), state_path=folder / "ft_state.json") as sections:
    for step in range(first, 6):
        with sections.step():
            if step == 3 and not attempts:
                time.sleep(600)
        with sections.checkpointing():
            completed.write_text(str(step + 1))
(folder / "first_steps.txt").write_text(str(first))
"""


@pytest.mark.slow
def test_ft_launcher_kills_a_rank_that_hangs_in_a_step_and_restarts_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HANGS_ONCE)
    seconds = "setup:120,step:3,checkpointing:120"
    options = [
        *("--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *(f"--ft-param-rank_section_timeouts={seconds}", "--ft-param-rank_out_of_section_timeout=120"),
        *("--ft-param-workload_check_interval=0.5", "--max-restarts=1"),
    ]
    launcher = Path(sys.executable).parent / "ft_launcher"
    ended = subprocess.run(
        [launcher, *options, script, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Section 'step' has been open" in ended.stderr
    assert len([*tmp_path.glob("attempt*")]) == 2
    assert (tmp_path / "first_steps.txt").read_text() == "3"
