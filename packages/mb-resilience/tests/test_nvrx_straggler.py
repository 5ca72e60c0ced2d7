import logging
import math
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import pytest

from mb_resilience import (
    NVRxDetectorError,
    NVRxStragglerDetectionConfig,
    NVRxStragglerMonitor,
    StragglerScores,
)


class StragglerId(NamedTuple):
    rank: int


class Report:
    """Report of NVRx on rank 0, with its method to identify stragglers."""

    def __init__(self, relative, individual):
        self.gpu_relative_perf_scores = relative
        self.gpu_individual_perf_scores = individual
        self.rank_to_node = {0: "alpha", 1: "beta", 2: "gamma"}

    def identify_stragglers(self, *, gpu_rel_threshold, gpu_indiv_threshold):
        def below(scores, threshold):
            return {StragglerId(rank) for rank, score in scores.items() if score < threshold}

        return {
            "straggler_gpus_relative": below(self.gpu_relative_perf_scores, gpu_rel_threshold),
            "straggler_gpus_individual": below(self.gpu_individual_perf_scores, gpu_indiv_threshold),
        }


class FakeDetector:
    """Detector with a report at every second step, on rank 0 only, as NVRx's."""

    def __init__(self, report=None):
        self.initialized = False
        self.reported = []
        self._report = report
        self._steps = 0

    def initialize(self, **requested):
        assert not self.initialized
        self.initialized = True
        self.reported.append(requested)

    @contextmanager
    def detection_section(self, name, profile_cuda):
        self.reported.append(f"<{name} {profile_cuda}")
        yield
        self.reported.append(f"{name}>")

    def generate_report_if_interval_elapsed(self):
        self._steps += 1
        return self._report if self.is_interval_elapsed() else None

    def is_interval_elapsed(self):
        return self._steps % 2 == 0

    def shutdown(self):
        self.initialized = False
        self.reported.append("shutdown")


SLOW = Report({0: 1.0, 1: 0.4, 2: 0.9}, {0: 0.95, 1: 0.5, 2: math.nan})
WHY = (
    "slow GPUs: rank 1 on beta (score 0.40) is slower than the fastest; "
    "rank 1 on beta (score 0.50) is slower than it was"
)


def steps(monitor, count):
    found = []
    for step in range(1, count + 1):
        monitor.begin_step()
        monitor.end_step()
        found.append(monitor.stop_requested(step))
    return found


def test_detector_receives_the_settings_measures_steps_and_shuts_down():
    settings = NVRxStragglerDetectionConfig(
        enabled=True, calc_individual_gpu_perf=False, profiling_interval=4, report_time_interval=9.0
    )
    detector = FakeDetector()
    with NVRxStragglerMonitor(settings, detector, profile_cuda=False) as monitor:
        steps(monitor, 1)
        monitor.begin_step()  # not ended, as if the step raised an exception
    requested = {"gather_on_rank0": True, "profiling_interval": 4, "report_time_interval": 9.0}
    assert detector.reported == [
        {"scores_to_compute": ["relative_perf_scores"], **requested},
        *("<step False", "step>", "<step False", "step>"),
        "shutdown",
    ]


def test_detector_left_initialized_by_a_failed_run_is_restarted():
    detector = FakeDetector()
    detector.initialize()
    with NVRxStragglerMonitor(NVRxStragglerDetectionConfig(), detector):
        assert detector.reported[1] == "shutdown"
        assert detector.initialized


@pytest.mark.parametrize(("stop", "requests"), [(True, [None, WHY]), (False, [None, None])])
def test_all_ranks_request_a_stop_if_rank_0_detects_a_slow_gpu(stop, requests):
    settings = NVRxStragglerDetectionConfig(enabled=True, stop_if_detected=stop)
    reported = []
    with NVRxStragglerMonitor(
        settings, FakeDetector(SLOW), broadcast=lambda mine: reported.append(mine) or mine
    ) as first:
        assert steps(first, 2) == requests
    with NVRxStragglerMonitor(
        settings, FakeDetector(), rank=1, broadcast=lambda mine: mine or reported[0]
    ) as second:
        assert steps(second, 2) == requests


def test_nan_scores_are_omitted():
    scores = StragglerScores.from_report(SLOW, NVRxStragglerDetectionConfig())
    assert scores == StragglerScores(
        relative={0: 1.0, 1: 0.4, 2: 0.9},
        individual={0: 0.95, 1: 0.5},
        nodes={0: "alpha", 1: "beta", 2: "gamma"},
        slow={"relative": [1], "individual": [1]},
    )
    assert scores.metrics() == {
        "gpu_relative_perf/min": 0.4,
        "gpu_relative_perf/median": 0.9,
        "gpu_relative_perf/max": 1.0,
        "gpu_individual_perf/min": 0.5,
        "gpu_individual_perf/median": pytest.approx(0.725),
        "gpu_individual_perf/max": 0.95,
    }
    nothing = Report({0: math.nan}, {})
    assert StragglerScores.from_report(nothing, NVRxStragglerDetectionConfig()).metrics() == {}


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (0, [WHY]),
        (
            1,
            [
                "GPU performance, relative: worst of 3: "
                "rank 1 on beta (score 0.40); best: rank 0 on alpha (score 1.00)",
                "GPU performance, individual: rank 1 on beta (score 0.50), rank 0 on alpha (score 0.95)",
                WHY,
            ],
        ),
    ],
)
def test_rank_0_logs_the_configured_number_of_scores(count, lines, caplog):
    settings = NVRxStragglerDetectionConfig(num_gpu_perf_scores_to_print=count, logger_name="mine")
    caplog.set_level(logging.INFO, logger="mine")
    with NVRxStragglerMonitor(settings, FakeDetector(SLOW)) as monitor:
        steps(monitor, 2)
    assert [record.getMessage() for record in caplog.records if record.name == "mine"] == lines


def test_detector_that_cannot_be_initialized_raises_one_error():
    class Blind(FakeDetector):
        def initialize(self, **requested):
            raise ImportError("libcupti.so.12: cannot open shared object file")

    with pytest.raises(NVRxDetectorError, match=r"nvrx_straggler\.enabled: .*libcupti"):
        NVRxStragglerMonitor(NVRxStragglerDetectionConfig(), Blind()).__enter__()


def test_nvrx_detector_has_the_interface():
    pytest.importorskip("nvidia_resiliency_ext")
    from mb_resilience.stragglers.nvrx_straggler import nvrx_detector

    detector = nvrx_detector()
    requested = {name for name in dir(FakeDetector) if not name.startswith("_")} | {"initialized"}
    assert requested <= {*dir(detector)}


class KernelTimes(NamedTuple):
    """Statistics of one kernel in microseconds, under the names of NVRx's CUPTI extension."""

    min: float
    max: float
    median: float
    avg: float
    stddev: float = 0.0
    num_calls: int = 100


def cupti_extension(microseconds):
    """Return a stub of the extension that measures GPU kernels; `microseconds` is a list with the current time."""

    class CuptiProfiler:
        def __init__(self, **buffers):
            pass

        def get_stats(self):
            return {"gemm": KernelTimes(*microseconds * 4)}

        def reset(self):
            pass

        initialize = shutdown = start = stop = reset

    extension = ModuleType("nvrx_cupti_module")
    extension.CuptiProfiler = CuptiProfiler
    return extension


def test_nvrx_detects_a_gpu_that_became_slow(monkeypatch):
    """Run NVRx's detector, intervals, reports and scores with given kernel times."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("nvidia_resiliency_ext", reason="nvidia-resiliency-ext is not installed")
    from mb_resilience.stragglers.nvrx_straggler import nvrx_detector

    microseconds = [10.0]
    monkeypatch.setitem(sys.modules, "nvrx_cupti_module", cupti_extension(microseconds))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    settings = NVRxStragglerDetectionConfig(enabled=True, report_time_interval=1e-9, stop_if_detected=True)

    def next_scores(monitor):
        for _ in range(100):
            monitor.begin_step()
            scores = monitor.end_step()
            if scores is not None:
                return scores
        return None

    with NVRxStragglerMonitor(settings, nvrx_detector()) as monitor:
        healthy = next_scores(monitor)
        assert (healthy.individual, healthy.slow, monitor.stop_requested(1)) == ({0: 1.0}, {}, None)
        microseconds[0] = 40.0
        slow = next_scores(monitor)
        assert slow.slow == {"individual": [0]}
        assert "is slower than it was" in monitor.stop_requested(2)
    assert not nvrx_detector().initialized


def test_nvrx_measures_kernels_through_cupti():
    """Run NVRx's detector as it is, which needs CUPTI and a GPU."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("nvidia_resiliency_ext", reason="nvidia-resiliency-ext is not installed")
    from mb_resilience.stragglers.nvrx_straggler import nvrx_detector

    if not torch.cuda.is_available():
        pytest.skip("NVRx's reports synchronize with a GPU, and there is none")
    settings = NVRxStragglerDetectionConfig(enabled=True, report_time_interval=1e-9)
    with NVRxStragglerMonitor(settings, nvrx_detector()) as monitor:
        for _ in range(100):
            monitor.begin_step()
            torch.ones(512, 512, device="cuda").mm(torch.ones(512, 512, device="cuda"))
            scores = monitor.end_step()
            if scores is not None:
                break
    assert scores.slow == {}
