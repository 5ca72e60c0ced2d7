import logging

import pytest

from mb_metrics import EnergySampler


class Gpu:
    """A GPU of 500 W, and the clock on the wall."""

    def __init__(self):
        self.now, self.broken = 0.0, False

    def clock(self):
        return self.now

    def joules(self):
        if self.broken:
            raise OSError("GPU is lost")
        return 500.0 * self.now


def test_energy_is_per_step_and_power_is_per_second():
    gpu = Gpu()
    sample = EnergySampler(gpu.joules, start_step=100, clock=gpu.clock)
    gpu.now = 20.0
    assert sample(110) == {"iter-energy/gpu": 1000.0, "power/gpu": 500.0}
    gpu.now = 21.0
    assert sample(111) == {"iter-energy/gpu": 500.0, "power/gpu": 500.0}
    assert sample(111) == {}


def test_a_pause_counts_neither_energy_nor_time():
    gpu = Gpu()
    sample = EnergySampler(gpu.joules, clock=gpu.clock)
    gpu.now = 10.0
    sample.pause()
    gpu.now = 100.0
    sample.resume()
    gpu.now = 110.0
    assert sample(10) == {"iter-energy/gpu": 1000.0, "power/gpu": 500.0}


def test_without_a_reader_energy_is_zero():
    gpu = Gpu()
    sample = EnergySampler(None, clock=gpu.clock)
    gpu.now = 10.0
    assert sample(10) == {"iter-energy/gpu": 0.0, "power/gpu": 0.0}


def test_a_reader_that_fails_from_the_start_measures_nothing():
    gpu = Gpu()
    gpu.broken = True
    sample = EnergySampler(gpu.joules, clock=gpu.clock)
    gpu.now = 10.0
    assert sample(10) == {"iter-energy/gpu": 0.0, "power/gpu": 0.0}


def test_a_reader_that_fails_ends_the_measurement_and_not_the_run(caplog):
    gpu = Gpu()
    sample = EnergySampler(gpu.joules, clock=gpu.clock)
    gpu.now, gpu.broken = 10.0, True
    with caplog.at_level(logging.WARNING):
        assert sample(10)["iter-energy/gpu"] == 0.0
        gpu.now = 20.0
        assert sample(20)["iter-energy/gpu"] == 0.0
    assert [record.message for record in caplog.records] == [
        "energy is no longer measured: OSError('GPU is lost')"
    ]


def test_a_machine_without_a_gpu_has_no_reader(caplog):
    torch = pytest.importorskip("torch")
    from mb_metrics import current_gpu_energy

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert current_gpu_energy() is None
    assert "no GPU is available" in caplog.text
