"""A run under a fault-tolerance launcher: calls that its monitor receives, and the stored timeouts."""

import json
import sys

import pytest

from mb_config import ConfigError
from mb_resilience import NoMonitorError
from mb_trainer import pretrain
from mb_trainer.requests import read_request

CLIENT = '''
"""Stand-in for NVRx: a client that records its calls."""

import types

CALLS = []


class RankMonitorClientError(Exception):
    pass


class RankMonitorClient:
    def init_workload_monitoring(self):
        CALLS.append("connected")
        timeouts = {"setup": 600, "step": 180, "checkpointing": 420}
        self.cfg = types.SimpleNamespace(rank_section_timeouts=timeouts)

    def shutdown_workload_monitoring(self):
        CALLS.append("disconnected")

    def start_section(self, section):
        CALLS.append(f"<{section}")

    def end_section(self, section):
        CALLS.append(f"{section}>")

    def calculate_and_set_section_timeouts(self, selected_sections, calc_out_of_section, skip_if_not_ready):
        CALLS.append([*selected_sections, calc_out_of_section])
        seconds = {name: 0.1 * len(CALLS) for name in selected_sections}
        self.kept = {"section": seconds, "calculated_sections": selected_sections, "out_of_section": 60.0}

    def state_dict(self):
        return {"current_timeouts": {"section": self.kept}}

    def load_state_dict(self, state):
        self.kept = state["current_timeouts"]["section"]
        CALLS.append(self.kept["section"])
'''
FT = ["ft.enable_ft_package=true", "ft.calc_ft_timeouts=true"]
SOCKET = {"FT_RANK_MONITOR_IPC_SOCKET": "/tmp/monitor.socket"}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Calls that the monitor received."""
    package = tmp_path / "nvrx" / "nvidia_resiliency_ext" / "fault_tolerance"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLIENT)
    (package / "data.py").write_text("class OkMsg:\n    pass\n")
    (package / "utils.py").write_text("def read_obj_from_ipc_socket(sock):\n    pass\n")
    (package.parent / "__init__.py").write_text("")
    for name in modules_of_nvrx():  # the installed library, which is back at the end
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(package.parent.parent)
    for name, value in SOCKET.items():
        monkeypatch.setenv(name, value)
    from nvidia_resiliency_ext import fault_tolerance

    yield fault_tolerance.CALLS
    for name in modules_of_nvrx():
        sys.modules.pop(name)


def modules_of_nvrx():
    """Return the names of the imported modules of NVRx and of its door."""
    return [name for name in sys.modules if name.startswith(("nvidia_resiliency_ext", "mb_resilience.nvrx"))]


def run(words, out, environment=SOCKET, **options):
    request = read_request(words)
    return pretrain(
        request.config, out=out, provenance=request.provenance, environment=environment, **options
    )


def test_the_monitor_receives_each_section_and_time_outs_are_stored(overrides, tmp_path, calls):
    out, state = tmp_path / "run", tmp_path / "run" / "checkpoints" / "ft_state.json"
    words = [*overrides, *FT, "train.train_iters=3", "checkpoint.save_interval=2", "validation.eval_iters=2"]
    words += ["validation.eval_interval=100"]
    run(words, out)
    step, save = ["<step", "step>"], ["<checkpointing", "checkpointing>"]
    calculated = [["checkpointing", False], {"checkpointing": 30.0}]  # what is shorter is raised
    assert calls == [
        "connected", "<setup", "setup>",  # the first step is in no section
        *step, *save, *calculated,
        *step, *save, *calculated,
        *save,  # nothing is left to be written
        *step, *step,  # of two batches of validation and two of test, the first of each in no section
        *calculated, "disconnected",
    ]  # fmt: skip
    assert json.loads(state.read_text())["current_timeouts"]["section"]["section"] == calculated[1]

    del calls[:]
    run([*words, "train.train_iters=20"], out, resume_with_changes=True)
    assert calls[:4] == ["connected", calculated[1], "<setup", "setup>"]
    assert [of for of in calls if isinstance(of, list)][-2:] == [
        ["setup", "step", "checkpointing", False],
        ["setup", "step", "checkpointing", True],
    ]
    assert calls[-2] == dict.fromkeys(["setup", "step", "checkpointing"], 30.0)
    assert json.loads(state.read_text())["current_timeouts"]["section"]["section"] == calls[-2]


def test_without_a_monitor_or_nvrx_nothing_starts(overrides, tmp_path, monkeypatch):
    words = [*overrides, *FT]
    monkeypatch.setitem(sys.modules, "nvidia_resiliency_ext", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="nvidia-resiliency-ext, which is not installed"):
        run(words, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_launcher_without_monitors_is_refused(overrides, tmp_path, calls):
    with pytest.raises(NoMonitorError, match="Start the job with NVRx's ft_launcher"):
        run([*overrides, *FT], tmp_path / "run", environment={})
    assert (calls, (tmp_path / "run").exists()) == ([], False)
