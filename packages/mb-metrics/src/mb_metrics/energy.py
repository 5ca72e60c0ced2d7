"""Energy of the GPU per step. Imports neither torch nor NVML."""

import logging
import time
from collections.abc import Callable

from mb_metrics.names import ENERGY, POWER

_logger = logging.getLogger(__name__)

EnergyReader = Callable[[], float]
"""Returns the joules that a GPU has used since some moment."""


class EnergySampler:
    """Measures the energy of this rank's GPU between log intervals, per step, and its mean power.

    One of the `samplers` of `Metrics`: called with the steps done, it returns "iter-energy/gpu" (joules per step) and
    "power/gpu" (watts), of the time and the steps since the last call, pauses left out. Without a reader, or once
    it fails, both are 0.

    Args:
        read: Returns the energy used so far; None: not measured. `nvml_reader` makes one.
        start_step: Steps done when measuring begins.
        clock: Seconds, monotonic.
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
        """Leave out what comes, an evaluation say, until `resume`."""
        self._take()

    def resume(self) -> None:
        """Measure again."""
        self._last = self._now()

    def __call__(self, step: int) -> dict[str, float]:
        """Return energy per step and power since the last call; nothing where no step was made."""
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
        except Exception as error:  # noqa: BLE001 - whatever the driver says, training goes on
            _logger.warning("energy is not measured any more: %r", error)
            self._read = None
            return self._last[0]
