"""Several samples in one sequence of fixed length: which go together, and how they stand there.

Shapes: S tokens of a pack, which is a micro-batch of one row.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mb_data.finetuning import EpochOrder
from mb_data.finetuning_samples import TokenizedSamples

FORMAT_VERSION = 1
"""Part of the file's name: a change of what is written makes new files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIndex:
    """Which samples stand in each pack, in their order."""

    members: NDArray[np.int64]
    """Numbers of samples, pack behind pack."""
    starts: NDArray[np.int64]
    """Where each pack begins in `members`, and the end of the last."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def max_samples(self) -> int:
        """Samples in the fullest pack."""
        return int(np.diff(self.starts).max())


def first_fit_decreasing(lengths: Sequence[int], *, size: int) -> list[list[int]]:
    """Put samples into as few packs as this rule finds: longest first, each into the first pack that has room.

    Needs at most 11/9 of the fewest possible packs, and one more (Dósa, 2007). A tree over the room that is left finds
    the pack, so that n samples take n log n steps.

    Args:
        lengths: Tokens of each sample.
        size: Tokens of a pack.

    Returns:
        Numbers of the samples in each pack.

    Raises:
        ValueError: A sample is longer than a pack.
    """
    if len(lengths) and max(lengths) > size:
        raise ValueError(
            f"packing: a sample of {max(lengths)} tokens does not fit into a pack of {size}. Cut it, or make "
            "packs larger."
        )
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [size] * (2 * leaves)  # node n has children 2n and 2n + 1, and the most room of either
    packs: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        node = 1
        while node < leaves:
            node = 2 * node if room[2 * node] >= lengths[number] else 2 * node + 1
        index = node - leaves
        if index == len(packs):
            packs.append([])
        packs[index].append(number)
        room[node] -= lengths[number]
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return packs


def pack_samples(samples: TokenizedSamples, *, size: int, multiple: int) -> PackIndex:
    """Pack samples by `first_fit_decreasing`, or find it done already, in a file beside the samples. Not collective.

    Args:
        samples: What is packed.
        size: Tokens of a pack.
        multiple: Each sample takes a multiple of so many tokens.
    """
    file = samples.folder / f"packs-{FORMAT_VERSION}-{len(samples)}-{size}-{multiple}.npz"
    try:
        with np.load(file) as found:
            return PackIndex(members=found["members"], starts=found["starts"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        pass  # not there, or damaged
    taken = -(-samples.lengths // multiple) * multiple
    packs = first_fit_decreasing(taken.tolist(), size=size)
    made = PackIndex(
        members=np.array([number for pack in packs for number in pack], np.int64),
        starts=np.cumsum([0, *map(len, packs)], dtype=np.int64),
    )
    handle, part = tempfile.mkstemp(dir=samples.folder, prefix=".packs-", suffix=".npz")
    os.close(handle)
    try:
        np.savez(part, members=made.members, starts=made.starts)
        Path(part).replace(file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return made


class PackedDataset:
    """Packs by place: a dictionary of tensors, all [S] but the last two.

    `tokens`, `labels` and `position_ids` (int64), `loss_mask` (float32); `cu_seqlens` (int32, [sequences + 1]): where
    each sequence begins, and S; `max_seqlen` (int32, []): tokens of the longest. Positions begin anew in every one.
    What is left behind the last sample is a sequence of padding, of which nothing is learned.

    Args:
        samples: What was tokenized.
        packs: Which samples go together.
        size: How many packs it has, in as many passes over them as that takes.
        seed: Of their order; None: that in which they were packed.
        padding_token: Stands where there is no sample.
        pack_size: Tokens of a pack.
        multiple: Each sample takes a multiple of so many tokens.
        equal_borders: Make `cu_seqlens` equally long in all packs, by repeating S.
    """

    def __init__(
        self,
        samples: TokenizedSamples,
        packs: PackIndex,
        *,
        size: int,
        seed: int | None,
        padding_token: int,
        pack_size: int,
        multiple: int = 1,
        pad_cu_seqlens: bool = False,
    ) -> None:
        self.samples, self.packs, self._size = samples, packs, size
        self._order = EpochOrder(len(packs), seed=seed)
        self._padding_token, self._pack_size, self._multiple = padding_token, pack_size, multiple
        self._num_boundaries = packs.max_samples + 2 if pad_cu_seqlens else 0

    def __len__(self) -> int:
        return self._size

    @property
    def mean_tokens(self) -> float:
        """Tokens of samples in a pack, on the average."""
        return float(self.samples.lengths.sum()) / len(self.packs)

    @property
    def attention_length(self) -> float:
        """Length of a sequence that has the attention of these per token: their squares' sum over their sum."""
        return self.samples.attention_length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a pack."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        start, end = self.packs.starts[(number := self._order[index]) : number + 2]
        whole: dict[str, NDArray[Any]] = {
            "tokens": np.full(self._pack_size, self._padding_token, np.int64),
            "labels": np.full(self._pack_size, self._padding_token, np.int64),
            "loss_mask": np.zeros(self._pack_size, np.float32),
        }
        boundaries = [0]
        for member in self.packs.members[start:end]:
            begin, behind = self.samples.starts[member : member + 2]
            ids, loss_mask = self.samples.tokens[begin:behind], self.samples.loss_mask[begin + 1 : behind]
            here = slice(boundaries[-1], boundaries[-1] + len(loss_mask))
            whole["tokens"][here], whole["labels"][here], whole["loss_mask"][here] = (
                ids[:-1],
                ids[1:],
                loss_mask,
            )
            boundaries.append(boundaries[-1] + -(-len(loss_mask) // self._multiple) * self._multiple)
        if boundaries[-1] < self._pack_size:
            boundaries.append(self._pack_size)
        lengths = np.diff(boundaries)
        positions = np.concatenate([np.arange(length) for length in lengths])
        boundaries += [self._pack_size] * (self._num_boundaries - len(boundaries))
        return {
            **{name: torch.from_numpy(each) for name, each in whole.items()},
            "position_ids": torch.from_numpy(positions),
            "cu_seqlens": torch.tensor(boundaries, dtype=torch.int32),
            "max_seqlen": torch.tensor(int(lengths.max()), dtype=torch.int32),
        }

    def collate(self, packs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Make a micro-batch of one pack, every tensor with a dimension of 1 before its own.

        Raises:
            ValueError: There are several packs.
        """
        if len(packs) != 1:
            raise ValueError(
                f"dataset.packed_sequence_specs: {len(packs)} packs in a micro-batch, and a pack is one whole. Use "
                f"micro_batch_size=1, and instead of more rows packs of {len(packs) * self._pack_size} tokens with "
                f"a global batch of one {len(packs)}th."
            )
        return {name: each.unsqueeze(0) for name, each in packs[0].items()}
