"""Break one rank on purpose, to test recovery: kill its process, or stop it. No torch."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Literal, Protocol, get_args

from mb_resilience.agreed_stop import KeyValueStore

FaultKind = Literal["rank_hung", "rank_killed"]
SIGNALS = {"rank_hung": signal.SIGSTOP, "rank_killed": signal.SIGKILL}


class FaultError(ValueError):
    """There cannot be such a fault."""


class FaultSettings(Protocol):
    """Which fault is wanted; `FaultToleranceConfig` fits."""

    @property
    def simulated_fault_type(self) -> Literal["rank_hung", "rank_killed", "random"]:
        """What happens."""

    @property
    def simulated_fault_rank(self) -> int | None:
        """To which rank; None: any."""

    @property
    def simulated_fault_base_delay(self) -> int:
        """After how many seconds; up to 20 % more are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What will happen to which rank, and when."""

    kind: FaultKind
    rank: int
    delay_seconds: float


def sample_fault(settings: FaultSettings, *, world_size: int, rng: random.Random) -> Fault:
    """Choose what the settings leave open. The same settings and the same state of `rng` choose the same.

    Raises:
        FaultError: the rank is none of the world, the kind is not known, or the delay is below zero.
    """
    kinds, base = get_args(FaultKind), settings.simulated_fault_base_delay
    kind, rank = settings.simulated_fault_type, settings.simulated_fault_rank
    if kind not in (*kinds, "random") or base < 0 or not 0 <= (rank or 0) < world_size:
        raise FaultError(
            f"ft.simulate_fault: simulated_fault_type={kind!r}, simulated_fault_rank={rank}, "
            f"simulated_fault_base_delay={base} with {world_size} ranks; the type is one of {(*kinds, 'random')}, the "
            "rank one of the world, the delay at least 0 s. Correct them."
        )
    chosen = rng.randrange(world_size), rng.choice(kinds), rng.random()  # as many draws whatever is set
    return Fault(
        kind=chosen[1] if kind == "random" else kind,
        rank=chosen[0] if rank is None else rank,
        delay_seconds=base * (1 + 0.2 * chosen[2]),
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
    """Let rank 0 choose, and tell all ranks. Every rank calls it; the others wait for rank 0, by the store's time-out.

    Args:
        settings: what is wanted.
        rng: random numbers of rank 0.
        store: shared by all ranks; None: one rank.
        rank: of this process.
        world_size: number of ranks.
        attempt: name of this run of the ranks, the same on all and different after each restart.

    Raises:
        FaultError: as `sample_fault`, on every rank.
    """
    if store is None or rank == 0:
        fault = sample_fault(settings, world_size=world_size, rng=rng)
    else:
        sample_fault(settings, world_size=world_size, rng=random.Random(0))  # raises where rank 0 does
    if store is None:
        return fault
    key = f"mb_resilience/fault/{attempt}"
    if rank == 0:
        store.set(key, json.dumps(asdict(fault)))
        return fault
    return Fault(**json.loads(store.get(key)))


def send_to_self(number: signal.Signals) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


class SimulatedFault:
    """Breaks this process after the fault's delay, if it is of this rank and the block still runs.

    Args:
        fault: the same on all ranks.
        rank: of this process.
        say: told what is about to happen.
        strike: sends the signal; for tests.
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
            f"simulated fault: {fault.kind}: rank {fault.rank} gets {number.name} now, after {delay:.1f} s"
        )
        self._send_signal(number)
