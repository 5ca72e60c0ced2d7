"""Comparison of the collectives that ranks have called: which ranks have not called which. No torch.

A record comes from torch's flight recorder, which numbers the collectives of each process group: from its memory
(`mb_resilience.hangs.flight_record_reader`), or from the file that NCCL's watchdog writes when a collective times out.
"""

import io
import json
import os
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mb_resilience.hangs.flight_recorder import DUMP_FILES
from mb_resilience.hangs.report import format_ranks
from mb_schema.declared_sizes import check_pickle

MAX_LINES = 8
"""Maximum number of process groups in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCollectives:
    """Newest collective that a rank has called in a process group."""

    group: str
    """Name of the group, identical on its ranks."""
    ranks: tuple[int, ...]
    """Ranks of the group; empty if they are unknown."""
    number: int
    """Sequence number of the collective in the group, from 1."""
    operation: str
    """Such as "all_reduce"."""
    size: str = ""
    """Shapes of its inputs, such as "16x4096 16"."""
    pending: bool = False
    """Whether it is not complete."""


RankCollectives = Mapping[int, Sequence[GroupCollectives]]
"""Rank to its groups; a rank without a record is missing."""


def parse_record(
    record: Mapping[str, Any], *, group_ranks: Mapping[str, Sequence[int]] | None = None
) -> tuple[GroupCollectives, ...]:
    """Return the newest collective of each group in a record of the flight recorder, without point-to-point calls.

    Args:
        record: as `json.loads` or an unpickling returns it.
        group_ranks: name of a group in the record -> its ranks; None: those in the record.
    """
    configs = {name: config.get("ranks", "[]") for name, config in record.get("pg_config", {}).items()}
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in record.get("entries", ()):
        if not entry.get("is_p2p", False):
            name, description = entry["process_group"]
            latest = newest.get((name, description))
            if latest is None or entry["collective_seq_id"] >= latest["collective_seq_id"]:
                newest[name, description] = entry
    return tuple(
        GroupCollectives(
            group=f"group {name}" if description in ("", "undefined") else f"{description} ({name})",
            ranks=tuple((group_ranks or {}).get(name) or json.loads(str(configs.get(name, "[]")))),
            number=entry["collective_seq_id"],
            operation=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
            size=" ".join("x".join(map(str, shape)) for shape in entry.get("input_sizes", ())),
            pending=entry.get("state") != "completed" and not entry.get("retired", False),
        )
        for (name, description), entry in newest.items()
    )


def as_text(collectives: Sequence[GroupCollectives]) -> str:
    """Return collectives as JSON, for a store. Its length does not grow with the size of groups in a rank grid."""
    return json.dumps([{**asdict(each), "ranks": _encode_ranks(each.ranks)} for each in collectives])


def from_text(text: str | bytes) -> tuple[GroupCollectives, ...]:
    """Return the collectives of a text made by `as_text`."""
    return tuple(
        GroupCollectives(**{**each, "ranks": _decode_ranks(json.dumps(each["ranks"]))})
        for each in json.loads(text)
    )


def _encode_ranks(ranks: Sequence[int]) -> list[int] | dict[str, Any]:
    """Return ranks as nested arithmetic progressions, which the groups of a grid of ranks are; else as a list.

    The ranks 0-3 and 16-19 are {"start": 0, "progressions": [[4, 1], [2, 16]]}: a number of terms and their distance,
    the innermost first.
    """
    starts, progressions = list(ranks), []
    while len(starts) > 1:
        distance = starts[1] - starts[0]
        number = next(
            (index for index in range(2, len(starts)) if starts[index] - starts[index - 1] != distance),
            len(starts),
        )
        outer = starts[::number]
        if [start + index * distance for start in outer for index in range(number)] != starts:
            return list(ranks)
        progressions.append([number, distance])
        starts = outer
    return {"start": starts[0], "progressions": progressions} if progressions else list(ranks)


@lru_cache(maxsize=4096)
def _decode_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks; the members of a group share one tuple."""
    encoded = json.loads(text)
    if isinstance(encoded, list):
        return tuple(encoded)
    ranks = [encoded["start"]]
    for number, distance in encoded["progressions"]:
        ranks = [rank + index * distance for index in range(number) for rank in ranks]
    return tuple(ranks)


def missing_collectives(records: RankCollectives, *, ranks: Sequence[int]) -> list[str]:
    """Return a line for each group in which ranks wait for others: the collective, and which ranks have not called it.

    Args:
        records: collectives of each rank that has a record.
        ranks: all ranks of the run; other members of a group are left out.
    """
    groups: dict[str, dict[int, GroupCollectives]] = defaultdict(dict)
    for rank, collectives in records.items():
        for collective in collectives:
            groups[collective.group][rank] = collective
    lines = []
    for group, by_rank in groups.items():
        number = max(collective.number for collective in by_rank.values())
        waiting = sorted(
            rank for rank, collective in by_rank.items() if collective.number == number and collective.pending
        )
        members = next(
            (collective.ranks for collective in by_rank.values() if collective.ranks), tuple(by_rank)
        )
        missing = [
            rank
            for rank in members
            if rank in ranks and (rank not in by_rank or by_rank[rank].number < number)
        ]
        if waiting and missing:
            last = by_rank[waiting[0]]
            size = f" of {last.size}" if last.size else ""
            lines.append(
                f"{_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''} in {last.operation}{size}, number {number} "
                f"of {group}; not called by {_with_last_call(missing, by_rank, records)}"
            )
    return lines[:MAX_LINES]


def _with_last_call(
    missing: Sequence[int], by_rank: Mapping[int, GroupCollectives], records: RankCollectives
) -> str:
    """Return the missing ranks as text, grouped by the last collective that they called in the group."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in missing:
        if rank not in records:
            last = "no record"
        elif rank not in by_rank:
            last = "none yet"
        else:
            last = f"last: {by_rank[rank].operation}, number {by_rank[rank].number}"
        groups[last].append(rank)
    return ", ".join(f"{_ranks(ranks)} ({last})" for last, ranks in groups.items())


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that builds nothing but containers, numbers and strings."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def read_dump_files(
    ranks: Sequence[int], *, environment: Mapping[str, str] | None = None
) -> dict[int, tuple[GroupCollectives, ...]]:
    """Return the collectives in the files that the flight recorder has written for these ranks.

    The files hold pickled records; one that holds anything but plain data is rejected.

    Args:
        ranks: ranks whose files are read; those without a file are left out.
        environment: variables with the prefix of the files; None: `os.environ`.

    Raises:
        ValueError: a file is damaged, or holds objects.
    """
    environment = os.environ if environment is None else environment
    prefix = next((environment[name] for name in DUMP_FILES if environment.get(name)), None)
    collectives: dict[int, tuple[GroupCollectives, ...]] = {}
    for rank in ranks if prefix is not None else ():
        file = Path(f"{prefix}{rank}")
        if file.is_file():
            try:
                content = file.read_bytes()
                check_pickle(content)
                collectives[rank] = parse_record(_PlainUnpickler(io.BytesIO(content)).load())
            except (
                pickle.UnpicklingError,
                EOFError,
                LookupError,
                TypeError,
                ValueError,
                AttributeError,
            ) as error:
                raise ValueError(
                    f"{file}: is not a record of the flight recorder ({error}). Remove the file."
                ) from None
    return collectives
