import math
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from mb_resilience import StragglerTimer  # noqa: E402
from mb_resilience.stragglers.detection import HostStopwatch  # noqa: E402
from mb_resilience.stragglers.report import UNITS  # noqa: E402
from mb_resilience.stragglers.torch_timing import (  # noqa: E402
    CudaStopwatch,
    _query,
    all_gather_row,
    broadcast_from_rank_0,
    gather_locations,
    gpu_telemetry,
    make_stopwatch,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_rows_are_gathered_over_a_group(group):
    (row,) = all_gather_row([1.0, 0.1, math.nan])
    assert row[:2] == [1.0, 0.1]
    assert math.isnan(row[2])


def test_object_of_rank_0_is_broadcast_over_a_group(group):
    assert broadcast_from_rank_0({"slow": [1]}) == {"slow": [1]}


def test_cpu_has_a_host_stopwatch():
    assert isinstance(make_stopwatch(torch.device("cpu")), HostStopwatch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_telemetry_is_empty():
    assert gpu_telemetry() == {}


@pytest.mark.parametrize("missing", [RuntimeError("NVML is too old"), ModuleNotFoundError("pynvml")])
def test_values_missing_in_nvml_are_omitted_and_other_errors_are_raised(missing):
    def fail(error):
        raise error

    assert _query(lambda: fail(missing)) is None
    with pytest.raises(ZeroDivisionError):
        _query(lambda: 1 / 0)


@pytest.mark.gpu
@needs_gpu
def test_device_time_is_measured_and_not_only_the_launch():
    timer = StragglerTimer(stopwatch=make_stopwatch(torch.device("cuda")), device=gpu_telemetry)
    matrix = torch.randn(8192, 8192, device="cuda")
    for _ in range(3):
        matrix @ matrix
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        with timer:
            for _ in range(3):
                matrix @ matrix
    launched = time.perf_counter() - begin
    (speed,) = timer.report().ranks
    seconds = time.perf_counter() - begin
    assert launched < speed.work_seconds <= seconds
    assert speed.work_seconds > 0.8 * seconds - 0.1
    assert set(speed.device) <= set(UNITS)


@pytest.mark.gpu
@needs_gpu
def test_events_are_reused_and_a_restarted_section_counts_from_the_second_start():
    watch = CudaStopwatch()
    for _ in range(3):
        watch.start()
        time.sleep(0.05)
        watch.start()
        watch.stop()
        torch.cuda.synchronize()
    assert watch.read() < 0.05
    assert watch.read() == 0.0


class CountTensors(TorchDispatchMode):
    """Mode that counts the tensors of all operations, and those that are read on the host."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "call", [lambda: all_gather_row([1.0, 2.0]), lambda: gather_locations(torch.device("cpu"))]
)
def test_the_operations_of_a_gather_do_not_grow_with_the_ranks(call):
    counted = {}
    for world_size in (16, 256):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        try:
            with CountTensors() as counter:
                rows = call()
        finally:
            dist.destroy_process_group()
        assert len(rows) == world_size
        counted[world_size] = counter.operations
    assert counted[16] == counted[256] < 10
