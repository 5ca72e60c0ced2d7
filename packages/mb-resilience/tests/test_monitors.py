"""Monitors and straggler detectors that are built from configuration sections, in a plain loop that fires events."""

import signal
import socket
import sys
from contextlib import ExitStack
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from mb_resilience import (  # noqa: E402
    FaultToleranceConfig,
    NoMonitorError,
    NVRxStragglerDetectionConfig,
    StragglerDetectionConfig,
    monitors,
)
from mb_resilience.hangs.collective_timeout import TimeoutAfterFirstStep  # noqa: E402
from mb_resilience.monitors import build_monitors  # noqa: E402
from mb_resilience.stragglers.detectors import (  # noqa: E402
    StragglerDetectors,
    build_straggler_detectors,
    open_switch,
)

ALONE = SimpleNamespace(rank=0, world_size=1, attempt="0", is_logging_rank=True)


def timeouts(minutes=10, later=None):
    return SimpleNamespace(distributed_timeout_minutes=minutes, distributed_timeout_seconds_after_init=later)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Loop:
    """Plain loop that fires events."""

    def __init__(self, callbacks):
        self.callbacks = callbacks
        self.counters = SimpleNamespace(step=0, floating_point_operations_so_far=0)
        self.context = SimpleNamespace(state=SimpleNamespace(train_state=self.counters))

    def fire(self, event):
        for callback in self.callbacks:
            getattr(callback, event, lambda context: None)(self.context)

    def step(self, work=lambda: None, *, flops=0):
        self.fire("on_train_step_start")
        work()
        self.counters.step += 1
        self.counters.floating_point_operations_so_far += flops
        self.fire("on_train_step_end")


def test_nothing_is_monitored_without_sections():
    with build_monitors(world=ALONE) as found:
        assert (found, found.callbacks) == (monitors.RunMonitors(), [])
        found.checkpoint_loaded()
    with build_monitors(world=ALONE, ft=FaultToleranceConfig(), dist=timeouts()) as found:
        assert found.callbacks == []


def test_a_hang_is_reported_before_collectives_time_out(tmp_path):
    alerts = []
    with build_monitors(
        world=ALONE,
        dist=timeouts(minutes=10, later=40),
        store=dist.HashStore(),
        folder=tmp_path,
        alert=alerts.append,
    ) as found:
        loop = Loop(found.callbacks)
        assert found.hangs.seconds == 300
        loop.step()
        assert found.hangs.seconds == 20
    assert alerts == []


def test_the_timeout_of_collectives_is_set_after_the_first_step(group):
    def seconds():
        return group._get_backend(torch.device("cpu")).options._timeout

    callback = TimeoutAfterFirstStep(61)
    before = seconds()
    loop = Loop([callback])
    loop.fire("on_train_step_start")
    assert seconds() == before > timedelta(seconds=61)
    loop.step()
    assert seconds() == timedelta(seconds=61)


def test_a_timeout_must_be_positive():
    with (
        pytest.raises(ValueError, match="every collective would time out immediately"),
        build_monitors(world=ALONE, dist=timeouts(later=0), store=dist.HashStore()),
    ):
        pass


def test_a_simulated_fault_stops_this_rank(monkeypatch):
    alerts, sent = [], []
    ft = FaultToleranceConfig(simulate_fault=True, simulated_fault_type="rank_hung")
    monkeypatch.setattr("mb_resilience.faults.os.kill", lambda process, number: sent.append(number))
    fault = monitors.simulated_fault(ft, world=ALONE, store=None, seed=1, alert=alerts.append)
    with fault:
        fault._thread.join()
    assert sent == [signal.SIGSTOP]
    assert alerts == ["simulated fault: rank_hung: rank 0 receives SIGSTOP now, after 0.0 s"]


class Client:
    """Client of a monitor that records the sections."""

    def __init__(self):
        self.sections = []

    def init_workload_monitoring(self):
        pass

    shutdown_workload_monitoring = init_workload_monitoring

    def start_section(self, section):
        self.sections.append(f"<{section}")

    def end_section(self, section):
        self.sections.append(f"{section}>")


def test_sections_are_reported_to_the_monitor_of_the_launcher(tmp_path, monkeypatch):
    door, client = ModuleType("mb_resilience.fault_tolerance.nvrx_monitor"), Client()
    door.monitor_client = lambda: client
    monkeypatch.setitem(sys.modules, door.__name__, door)
    ft = FaultToleranceConfig(enable_ft_package=True)
    with build_monitors(world=ALONE, ft=ft, state_folder=tmp_path) as found:
        found.checkpoint_loaded()
        loop = Loop(found.callbacks)
        loop.step()
        loop.step()
        loop.fire("on_checkpoint_start")
        loop.fire("on_checkpoint_end")
        loop.fire("on_checkpoint_save")
    assert client.sections == ["<setup", "setup>", "<step", "step>", "<checkpointing", "checkpointing>"]


def test_a_missing_launcher_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("nvidia_resiliency_ext")
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    ft = FaultToleranceConfig(enable_ft_package=True)
    with pytest.raises(NoMonitorError), build_monitors(world=ALONE, ft=ft, state_folder=tmp_path):
        pass


def test_ranks_are_compared_at_each_log_interval(group):
    lines = []
    section = StragglerDetectionConfig(log_straggler=True)
    with build_straggler_detectors(world=ALONE, straggler=section, log_interval=2, log=lines.append) as found:
        loop, rows = Loop(found.callbacks), []
        data = found.wrap_data([iter(range(9)), None])
        forward = found.wrap_forward_step(lambda: sum(range(1000 * next(data[0]))))
        forward()  # an evaluation: not timed
        for _ in range(4):
            loop.step(forward, flops=10**9)
            rows.append({name: value for read in found.step_values for name, value in read().items()})
        assert found.stop_requested is None
    assert [sorted(row)[:2] for row in rows[::2]] == [[], []]
    assert [row["straggler/slowest-rank"] for row in rows[1::2]] == [0.0, 0.0]
    for row in rows[1::2]:  # two steps of 1e9 operations, a third of them in the forward pass
        seconds = 2 * row["straggler/work-ms-max"] / 1000
        assert row["straggler/tflops-max"] == pytest.approx(2e9 / 3 / seconds / 1e12)
    assert [line.startswith("speed of ranks, min to max: work") for line in lines] == [True, True]


def test_other_ranks_log_nothing(group):
    lines, rank = [], SimpleNamespace(rank=0, is_logging_rank=False)
    section = StragglerDetectionConfig(log_straggler=True)
    with build_straggler_detectors(world=rank, straggler=section, log=lines.append) as found:
        Loop(found.callbacks).step(found.wrap_forward_step(lambda: None))
        assert found.metrics()["straggler/slowest-rank"] == 0
    assert lines == []


def test_a_slow_gpu_is_a_metric_a_warning_and_a_stop_request(group, monkeypatch):
    detector, lines = Detector(), []
    monkeypatch.setattr("mb_resilience.stragglers.detectors.nvrx_detector", lambda: detector)
    section = NVRxStragglerDetectionConfig(enabled=True, stop_if_detected=True)
    with build_straggler_detectors(world=ALONE, nvrx_straggler=section, log=lines.append) as found:
        loop = Loop(found.callbacks)
        loop.step()
        assert (found.metrics(), found.stop_requested(1)) == ({}, None)
        loop.step()
        assert found.metrics()["gpu_relative_perf/min"] == 0.25
        why = "slow GPUs: rank 0 on alpha (score 0.25) is slower than the fastest"
        assert (found.stop_requested(2), lines) == (why, [f"warning: {why}"])
        loop.step()
        assert (found.metrics(), lines[1:]) == ({}, [])
    assert not detector.initialized


class Detector:
    """Detector with a report at the second step, in which this rank is slow."""

    initialized = False
    steps = 0
    gpu_relative_perf_scores = {0: 0.25}  # noqa: RUF012
    gpu_individual_perf_scores = {0: 1.0}  # noqa: RUF012
    rank_to_node = {0: "alpha"}  # noqa: RUF012

    def initialize(self, **settings):
        self.initialized = True

    def detection_section(self, name, profile_cuda):
        return ExitStack()

    def generate_report_if_interval_elapsed(self):
        self.steps += 1
        return self if self.is_interval_elapsed() else None

    def is_interval_elapsed(self):
        return self.steps == 2

    def identify_stragglers(self, *, gpu_rel_threshold, gpu_indiv_threshold):
        return {"straggler_gpus_relative": [ALONE], "straggler_gpus_individual": []}

    def shutdown(self):
        self.initialized = False


def test_the_switch_of_rank_0_is_logged_with_its_token(group, tmp_path):
    section, lines = StragglerDetectionConfig(straggler_ctrlr=True, straggler_ctrlr_port=0), []
    with ExitStack() as stack:
        token_file = tmp_path / "a token"
        switch = open_switch(stack, section, on=True, rank=0, token_file=token_file, log=lines.append)
        assert token_file.read_text() == switch.token
        usage, _, port = lines[0].rpartition(":")
        socket.create_connection(("127.0.0.1", int(port))).close()
    assert usage == (
        f"straggler timer: switch with curl -H \"Authorization: Bearer $(cat '{token_file}')\" 127.0.0.1"
    )


def test_a_port_in_use_is_logged_and_the_run_continues_without_a_switch(group):
    lines = []
    with socket.socket() as taken, ExitStack() as stack:
        taken.bind(("", 0))
        taken.listen()
        section = StragglerDetectionConfig(
            straggler_ctrlr=True, straggler_ctrlr_port=taken.getsockname()[1], straggler_ctrlr_host=""
        )
        switch = open_switch(stack, section, on=True, rank=0, token_file=None, log=lines.append)
    assert switch is None
    assert lines[0].startswith("warning: straggler.straggler_ctrlr_port: straggler switch: cannot listen")


@pytest.mark.parametrize(
    "sections",
    [(None, None), (StragglerDetectionConfig(), NVRxStragglerDetectionConfig())],
    ids=["none", "disabled"],
)
def test_sections_that_are_absent_or_disabled_change_nothing(sections):
    with build_straggler_detectors(world=ALONE, straggler=sections[0], nvrx_straggler=sections[1]) as found:
        assert found == StragglerDetectors()
        assert (found.callbacks, found.metrics(), found.stop_requested) == ([], {}, None)
        assert found.step_values == []
        assert found.wrap_forward_step(len) is len
        assert found.wrap_data(data := iter([1])) is data
