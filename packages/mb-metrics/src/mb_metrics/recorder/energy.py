"""Energy of the GPU per step. Imports neither torch nor NVML."""

import logging
import time
from collections.abc import Callable

from mb_metrics.names import ENERGY, POWER

_logger = logging.getLogger(__name__)

EnergyReader = Callable[[], float]
"""Function that returns the energy used by a GPU, in joules, since a fixed point in time."""


class EnergySampler:
    """Sampler of the energy per step and the mean power of this rank's GPU.

    For the `samplers` argument of `Metrics`. Called with the number of completed steps, it returns "iter-energy/gpu"
    (joules per step) and "power/gpu" (watts) over the time and the steps since the previous call, pauses excluded.
    Without a reader, or after it fails, both are 0.

    Args:
        read: Function that returns the energy used so far, as `current_gpu_energy` returns; None: not measured.
        start_step: Completed steps at the start of the measurement.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        read: EnergyReader | None,
        *,
        start_step: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read = read
        self._clock = clock
        self._step = start_step
        self._joules = self._seconds = 0.0
        self._last = (0.0, 0.0)
        self._last = self._now()

    def pause(self) -> None:
        """Stop measuring until `resume`, for example during an evaluation."""
        self._take()

    def resume(self) -> None:
        """Resume measuring."""
        self._last = self._now()

    def __call__(self, step: int) -> dict[str, float]:
        """Return energy per step and power since the last call; empty if no step was completed."""
        self._take()
        steps, joules, seconds = step - self._step, self._joules, self._seconds
        if steps <= 0:
            return {}
        self._step, self._joules, self._seconds = step, 0.0, 0.0
        return {ENERGY: joules / steps, POWER: joules / seconds if seconds > 0 else 0.0}

    def _take(self) -> None:
        joules, seconds = self._now()
        self._joules += joules - self._last[0]
        self._seconds += seconds - self._last[1]
        self._last = (joules, seconds)

    def _now(self) -> tuple[float, float]:
        return self._energy(), self._clock()

    def _energy(self) -> float:
        if self._read is None:
            return 0.0
        try:
            return self._read()
        except Exception as error:  # noqa: BLE001 - a driver error must not end training
            _logger.warning("energy is no longer measured: %r", error)
            self._read = None
            return self._last[0]
