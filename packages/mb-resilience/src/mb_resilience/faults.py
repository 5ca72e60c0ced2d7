"""Simulated faults to test recovery: kill or stop the process of one rank. No torch."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Literal, Protocol, get_args

from mb_resilience.errors import FaultError
from mb_resilience.stops.decision_exchange import KeyValueStore

FaultKind = Literal["rank_hung", "rank_killed"]
SIGNALS = {"rank_hung": signal.SIGSTOP, "rank_killed": signal.SIGKILL}


class FaultSettings(Protocol):
    """Settings of a simulated fault, such as `FaultToleranceConfig`."""

    @property
    def simulated_fault_type(self) -> Literal["rank_hung", "rank_killed", "random"]:
        """Kind of the fault."""

    @property
    def simulated_fault_rank(self) -> int | None:
        """Rank of the fault; None for a random rank."""

    @property
    def simulated_fault_base_delay(self) -> float:
        """Delay in seconds; up to 20 % are added at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Kind, rank and delay of a simulated fault."""

    kind: FaultKind
    rank: int
    delay_seconds: float


def sample_fault(settings: FaultSettings, *, world_size: int, rng: random.Random) -> Fault:
    """Sample the values that the settings leave open. Deterministic for given settings and state of `rng`.

    Raises:
        FaultError: the rank is outside of the world size, the kind is unknown, or the delay is negative.
    """
    kinds, base = get_args(FaultKind), settings.simulated_fault_base_delay
    kind, rank = settings.simulated_fault_type, settings.simulated_fault_rank
    if kind not in (*kinds, "random") or base < 0 or not 0 <= (rank or 0) < world_size:
        raise FaultError(
            f"ft.simulate_fault: simulated_fault_type={kind!r}, simulated_fault_rank={rank}, "
            f"simulated_fault_base_delay={base} with {world_size} ranks; the type must be one of {(*kinds, 'random')}, "
            "the rank below the world size, and the delay at least 0 s. Correct the settings."
        )
    # Always three samples, so that a value that is set does not change the values sampled for the others.
    random_rank, random_kind, part_of_delay = rng.randrange(world_size), rng.choice(kinds), rng.random()
    return Fault(
        kind=random_kind if kind == "random" else kind,
        rank=random_rank if rank is None else rank,
        delay_seconds=base * (1 + 0.2 * part_of_delay),
    )


def agree_on_fault(
    settings: FaultSettings,
    *,
    rng: random.Random,
    store: KeyValueStore | None = None,
    rank: int = 0,
    world_size: int = 1,
    attempt: str = "0",
) -> Fault:
    """Sample a fault on rank 0 and return it on all ranks.

    Every rank must call this function; the other ranks wait for rank 0 until the timeout of the store.

    Args:
        settings: settings of the fault.
        rng: random number generator of rank 0.
        store: store shared by all ranks; None for a single rank.
        rank: rank of this process.
        world_size: number of ranks.
        attempt: name of this start of the run, identical on all ranks and different after each restart.

    Raises:
        FaultError: as in `sample_fault`, on every rank.
    """
    if store is None or rank == 0:
        fault = sample_fault(settings, world_size=world_size, rng=rng)
    else:
        # raises on the same settings as rank 0
        sample_fault(settings, world_size=world_size, rng=random.Random(0))
    if store is None:
        return fault
    key = f"mb_resilience/fault/{attempt}"
    if rank == 0:
        store.set(key, json.dumps(asdict(fault)))
        return fault
    return Fault(**json.loads(store.get(key)))


def send_to_self(number: signal.Signals) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


class SimulatedFault:
    """Context manager that kills or stops this process after the delay of a fault for this rank.

    Args:
        fault: fault, identical on all ranks.
        rank: rank of this process.
        log: receives a message before the signal is sent.
        send_signal: sends the signal to this process; replaced in tests.
    """

    def __init__(
        self,
        fault: Fault,
        *,
        rank: int,
        log: Callable[[str], object] = print,
        send_signal: Callable[[signal.Signals], None] = send_to_self,
    ) -> None:
        self._fault = fault
        self._is_target = rank == fault.rank
        self._log_text = log
        self._send_signal = send_signal
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="simulated fault", daemon=True)

    def __enter__(self) -> "SimulatedFault":
        if self._is_target:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._is_target:
            self._thread.join()

    def _wait(self) -> None:
        fault = self._fault
        if self._stopped.wait(fault.delay_seconds):
            return
        number, delay = SIGNALS[fault.kind], fault.delay_seconds
        self._log_text(
            f"simulated fault: {fault.kind}: rank {fault.rank} receives {number.name} now, after {delay:.1f} s"
        )
        self._send_signal(number)
