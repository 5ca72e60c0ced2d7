"""Step times of a host that runs ahead of its device, on a simulated device."""

import pytest

from mb_metrics import Metrics
from mb_metrics.recorder.clock import DeviceTimer

LAUNCH, WORK = 0.025, 1.0
"""Seconds in which the host queues a step, and in which the device makes it."""


class Device:
    """A device whose queue the host fills; marks are reached when the work queued before them is done."""

    def __init__(self):
        self.host, self.idle_from, self.steps, self.waited = 0.0, 0.0, 0, set()

    def step(self, work=WORK):
        """Queue a step."""
        self.host += LAUNCH
        self.steps += 1
        self.idle_from = max(self.host, self.idle_from) + work

    def mark(self):
        return max(self.host, self.idle_from)

    def ready(self, mark):
        return self.host >= mark

    def seconds(self, begin, end):
        if not self.ready(end):
            self.waited.add(self.steps)
        self.host = max(self.host, end)
        return end - begin


def rates_of(recorder, device, timer, *, steps=40, pause_after=None):
    """Train steps of 1,000 tokens at an MFU of 0.5 and return (seconds, tokens/s, MFU) of each log interval."""
    metrics = Metrics(
        [recorder], log_interval=10, timer=timer, flops_per_token=1e9, peak_tflops=2.0, total_steps=steps
    )
    for step in range(1, steps + 1):
        device.step()
        metrics.record(step, {}, samples=1, tokens=1000)
        if step == pause_after:
            with metrics.pause():
                device.host = (
                    max(device.host, device.idle_from) + 100
                )  # an evaluation, which reads its losses
    metrics.close()
    rates = [interval.rates for interval in recorder.intervals]
    return [
        (round(each.step_seconds, 3), round(each.tokens_per_second), round(each.mfu, 3)) for each in rates
    ]


def test_the_clock_of_the_host_times_launches(recorder):
    device = Device()
    rates = rates_of(recorder, device, DeviceTimer(lambda: device.host, events=False))
    assert rates == [(0.025, 40000, 20.0)] * 4  # 40 times too fast


def test_marks_of_the_device_time_its_work_and_no_step_waits_for_it(recorder):
    device = Device()
    rates = rates_of(recorder, device, device)
    assert rates[0] == (1.002, 998, 0.499)  # with the first launch, for which the device was idle
    assert rates[1:] == [(1.0, 1000, 0.5)] * 3
    assert device.waited == {20, 30, 40}  # an interval ends and reads the previous one
    assert [round(interval.seconds_left) for interval in recorder.intervals] == [30, 20, 10, 0]
    assert recorder.rows[-1].values["iteration-time"] == pytest.approx(1.0)
    assert recorder.rows[-1].values["throughput/tokens_per_sec"] == pytest.approx(1000)


def test_an_interval_is_written_when_the_device_has_reached_its_end(recorder):
    device = Device()
    metrics = Metrics([recorder], log_interval=2, timer=device)
    for step in (1, 2, 3):
        device.step()
        metrics.record(step, {})
    assert (recorder.steps, device.waited) == ([], set())
    device.host = 2.5
    device.step(work=0.0)
    metrics.record(4, {})  # ends an interval: waits for the previous one
    assert recorder.steps == [1, 2]
    metrics.flush()
    assert recorder.steps == [1, 2, 3, 4]


def test_a_pause_is_left_out_though_the_host_entered_it_early(recorder):
    device = Device()
    rates = rates_of(recorder, device, device, pause_after=15)
    assert [seconds for seconds, _, _ in rates] == pytest.approx([1.0, 1.0, 1.0, 1.0], abs=0.01)


def test_without_cuda_the_host_is_timed(recorder, clock):
    timer = DeviceTimer(clock)
    begin = timer.mark()
    clock.now += 3
    end = timer.mark()
    assert (timer.ready(end), timer.seconds(begin, end)) == (True, 3.0)


class Event:
    """A CUDA event at a time of the device, in milliseconds."""

    def __init__(self, milliseconds):
        self.milliseconds, self.waited = milliseconds, False

    def query(self):
        return self.waited

    def synchronize(self):
        self.waited = True

    def elapsed_time(self, end):
        return end.milliseconds - self.milliseconds


def test_cuda_events_are_waited_for_before_they_are_read(clock):
    timer, end = DeviceTimer(clock), Event(2500.0)
    assert not timer.ready((7.0, end))
    assert timer.seconds((6.0, Event(1000.0)), (7.0, end)) == 1.5
    assert timer.ready((7.0, end))
    assert timer.seconds((6.0, None), (7.0, end)) == 1.0  # CUDA was not in use yet: the host's time
