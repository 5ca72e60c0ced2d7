"""Environment variables that this package reads: MB_GUARD and the rank that a launcher sets."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mb_guard.errors import UnknownFaultError

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def is_first_rank(environment: Mapping[str, str]) -> bool:
    """Return whether this process is rank 0, by the first variable of a launcher that is set."""
    ranks = [environment[name] for name in _RANK_VARIABLES if name in environment]
    return not ranks or ranks[0] == "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Choice of what is done, from MB_GUARD."""

    mode: Literal["on", "warn", "off"] = "on"
    only: frozenset[str] = frozenset()
    """Ids of the only faults that are guarded; empty: all."""
    without: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environment: Mapping[str, str], known: Collection[str]) -> "Choice":
        """Read MB_GUARD: `on` (or unset), `warn`, `off`, or ids separated by commas, `-ID` for all but that one.

        Args:
            environment: environment variables.
            known: ids of the faults.

        Raises:
            UnknownFaultError: MB_GUARD names a fault that does not exist.
        """
        text = environment.get("MB_GUARD", "").strip()
        if text in ("", "on", "off", "warn"):
            return cls(mode=text or "on")  # type: ignore[arg-type]
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name.removeprefix("-") not in known:
                raise UnknownFaultError(
                    f"MB_GUARD={text}: there is no fault {name.removeprefix('-')}. "
                    f"Choose off, warn, or from {', '.join(sorted(known))}."
                )
        return cls(
            only=frozenset(name for name in names if not name.startswith("-")),
            without=frozenset(name[1:] for name in names if name.startswith("-")),
        )

    def takes(self, fault: str) -> bool:
        """Return whether a fault is guarded."""
        return self.mode != "off" and fault not in self.without and (not self.only or fault in self.only)
