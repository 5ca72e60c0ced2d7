"""First-fit-decreasing assignment of samples to packs of a fixed number of tokens. NumPy only.

The samples are placed in order of decreasing length, each into the first pack with enough room. Lengths are integers
with few distinct values, so all samples of a length are placed at once: the packs are kept as runs of consecutive packs
with equal room, and a length changes whole runs but the last one that it reaches, which is split. A length adds at most
four runs, so d distinct lengths take O(d * runs) vectorized operations, whatever the number of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIndex:
    """Assignment of samples to packs."""

    members: Integers
    """Indices of the samples, concatenated over packs."""
    starts: Integers
    """Offset of each pack in `members`, and the end of the last pack."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def max_samples(self) -> int:
        """Maximum number of samples in a pack."""
        return int(np.diff(self.starts).max())


def pack_lengths(lengths: Sequence[int] | Integers, *, size: int) -> PackIndex:
    """Assign samples to packs by first-fit-decreasing: longest first, each to the first pack with enough room.

    Samples of equal length are placed in order of their index. Uses at most 11/9 of the minimum number of packs, plus
    one (Dósa, 2007), and memory for about six 64-bit integers per sample.

    Args:
        lengths: Length of each sample in tokens, shape [samples].
        size: Length of a pack in tokens.

    Raises:
        ValueError: A sample is longer than a pack, or has no token.
    """
    samples = np.asarray(lengths, np.int64)
    if not len(samples):
        return PackIndex(members=np.zeros(0, np.int64), starts=np.zeros(1, np.int64))
    if samples.max() > size:
        raise ValueError(
            f"packing: a sample of {samples.max()} tokens does not fit into a pack of {size}. Truncate it, or "
            "increase the size of a pack."
        )
    if samples.min() < 1:
        raise ValueError(f"packing: a sample of {samples.min()} tokens. Remove samples without tokens.")
    longest_first = np.argsort(-samples, kind="stable")
    distinct, counts = np.unique(samples, return_counts=True)
    packs = _Packs(size)
    placed = [
        packs.place(int(length), int(count))
        for length, count in zip(distinct[::-1], counts[::-1], strict=True)
    ]
    pack_of = np.concatenate(placed)
    starts = np.cumsum(np.bincount(pack_of, minlength=packs.total))
    return PackIndex(
        members=longest_first[np.argsort(pack_of, kind="stable")], starts=np.concatenate(([0], starts))
    )


def first_fit_decreasing(lengths: Sequence[int], *, size: int) -> list[list[int]]:
    """Return the packs of `pack_lengths` as lists of the indices of their samples.

    Raises:
        ValueError: A sample is longer than a pack, or has no token.
    """
    index = pack_lengths(lengths, size=size)
    return [pack.tolist() for pack in np.split(index.members, index.starts[1:-1])] if len(index) else []


class _Packs:
    """Packs in order of creation, as runs of consecutive packs with equal room."""

    def __init__(self, size: int) -> None:
        self.total = 0
        self._size = size
        self._first = self._number = self._room = np.zeros(0, np.int64)  # of each run

    def place(self, length: int, count: int) -> Integers:
        """Place samples of one length, which is smaller than those before; return the pack of each sample."""
        runs = np.flatnonzero(self._room >= length)
        per_pack = self._room[runs] // length
        capacity = np.cumsum(per_pack * self._number[runs])  # of a run and all before it
        filled = int(np.searchsorted(capacity, count, side="right"))
        placed = [self._fill_runs(runs[:filled], per_pack[:filled], length)]
        unplaced = count - len(placed[0])
        if unplaced and filled < len(runs):
            placed.append(self._fill_part(int(runs[filled]), unplaced, length))
        elif unplaced:
            run = self._append_run(-(-unplaced // (self._size // length)))
            placed.append(self._fill_part(run, unplaced, length))
        return np.concatenate(placed)

    def _fill_runs(self, runs: Integers, per_pack: Integers, length: int) -> Integers:
        """Put `per_pack` samples into every pack of the runs; return the pack of each sample."""
        self._room[runs] -= per_pack * length
        number = self._number[runs]
        offsets = self._first[runs] - (np.cumsum(number) - number)
        packs = np.repeat(offsets, number) + np.arange(int(number.sum()))
        return np.repeat(packs, np.repeat(per_pack, number))

    def _fill_part(self, run: int, count: int, length: int) -> Integers:
        """Fill the packs of a run in order until no sample is left, and split it; return the pack of each sample."""
        first, number, room = int(self._first[run]), int(self._number[run]), int(self._room[run])
        per_pack = room // length
        full, remainder = divmod(count, per_pack)
        partly_full = int(remainder > 0)
        # (packs, their room) of the runs into which this one is split; empty ones are dropped below
        parts = [
            (full, room - per_pack * length),
            (partly_full, room - remainder * length),
            (number - full - partly_full, room),
        ]
        numbers, rooms = np.array([part for part in parts if part[0]], np.int64).T
        firsts = first + np.cumsum(numbers) - numbers
        self._first = np.concatenate((self._first[:run], firsts, self._first[run + 1 :]))
        self._number = np.concatenate((self._number[:run], numbers, self._number[run + 1 :]))
        self._room = np.concatenate((self._room[:run], rooms, self._room[run + 1 :]))
        return first + np.arange(count, dtype=np.int64) // per_pack

    def _append_run(self, number: int) -> int:
        self._first = np.append(self._first, self.total)
        self._number = np.append(self._number, number)
        self._room = np.append(self._room, self._size)
        self.total += number
        return len(self._room) - 1
