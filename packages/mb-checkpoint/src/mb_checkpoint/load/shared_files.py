"""Assignment of the files that several ranks need: one of them reads a file and sends the others their pieces."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MAX_FILES = 128
"""Number of files that a rank shares at most, those of which it needs most; it reads the others itself."""
SMALL_BYTES = 16 << 20
SMALL_PARTS = 64
"""A rank reads a part itself that is smaller than `SMALL_BYTES` and this fraction of its file."""
MAX_COPIES = 4
"""Sizes of a file that the ranks of one reader need at most; beyond that, another rank reads the file, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Part of a file that a rank needs."""

    pieces: int
    """Number of stored entries."""
    size: int
    """Bytes."""


Parts = Mapping[str, FilePart]
"""File -> the part of it that a rank needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """File that one rank reads for others."""

    name: str
    reader: int
    """Rank that reads the file."""
    receivers: Mapping[int, int]
    """Rank -> number of pieces that the reader sends to it."""


def parts_to_share(parts: Parts, sizes: Mapping[str, int]) -> dict[str, FilePart]:
    """Return the parts that a rank offers to receive from another one: the largest.

    Their number is limited, so that rank 0 assigns all files of thousands of replicas.
    """
    large = [
        name
        for name, part in parts.items()
        if part.size >= SMALL_BYTES or part.size * SMALL_PARTS >= sizes[name]
    ]
    chosen = heapq.nlargest(MAX_FILES, large, key=lambda name: (parts[name].size, name))
    return {name: parts[name] for name in chosen}


def assign_readers(parts: Sequence[Parts], sizes: Mapping[str, int]) -> list[list[SharedFile]]:
    """Return the files that each rank shares, in the order in which it reads or receives them.

    The readers are balanced by the bytes that a rank reads, sends and receives. No rank is part of two files of the
    same round, and all ranks follow the rounds in order: each file waits only for files of earlier rounds.

    Args:
        parts: For each rank, the parts that it needs.
        sizes: File -> bytes.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, files in enumerate(parts):
        for name in files:
            ranks_of.setdefault(name, []).append(rank)
    groups = [
        (name, group)
        for name, ranks in ranks_of.items()
        for group in _groups(ranks, {rank: parts[rank][name].size for rank in ranks}, sizes[name])
    ]
    loads, busy = [0] * len(parts), [0] * len(parts)
    rounds: list[list[tuple[int, SharedFile]]] = [[] for _ in parts]
    for name, group in sorted(groups, key=lambda each: (len(each[1]) > 1, -sizes[each[0]], each)):
        needed = {rank: parts[rank][name].size for rank in group}
        if 2 * sum(needed.values()) <= sizes[name]:
            continue  # reading all of it would take longer
        reader = min(group, key=lambda rank: (loads[rank] - needed[rank], rank))
        for rank in group:
            loads[rank] += needed[rank]
        loads[reader] += sizes[name] + sum(needed.values()) - 2 * needed[reader]
        if len(group) == 1:
            continue
        file = SharedFile(
            name=name,
            reader=reader,
            receivers={rank: parts[rank][name].pieces for rank in group if rank != reader},
        )
        taken = 0
        for rank in group:
            taken |= busy[rank]
        first_free = ~taken & (taken + 1)  # a bit for each round
        for rank in group:
            busy[rank] |= first_free
            rounds[rank].append((first_free, file))
    return [[file for _, file in sorted(each, key=lambda pair: pair[0])] for each in rounds]


def _groups(ranks: Sequence[int], needed: Mapping[int, int], size: int) -> Iterator[list[int]]:
    """Yield neighbouring ranks, which are often on one node, that need at most `MAX_COPIES` of a file together."""
    group: list[int] = []
    total = 0
    for rank in ranks:
        if group and total + needed[rank] > MAX_COPIES * size:
            yield group
            group, total = [], 0
        group.append(rank)
        total += needed[rank]
    yield group
