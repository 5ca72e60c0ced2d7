"""Packing of several samples into one sequence of fixed length.

Shapes: S tokens of a pack, which is a micro-batch of one row.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn.functional import pad

from mb_data.errors import BadDocumentError
from mb_data.finetuning.dataset import EpochsOfSamples, concatenate
from mb_data.finetuning.first_fit import PackIndex
from mb_data.finetuning.samples import TokenizedSamples


class PackedDataset(EpochsOfSamples):
    """Map-style dataset of packs, each a row of `concatenate`.

    Args:
        samples: The tokenized samples.
        packs: Assignment of samples to packs.
        size: Length of the dataset, over as many epochs as necessary.
        seed: Seed of the order of packs; None: the order in which they were packed.
        padding_token: Token at positions without a sample.
        pack_size: Length of a pack in tokens.
        multiple: The length of each sample is rounded up to a multiple of this number of tokens.
        pad_cu_seqlens: Pad `cu_seqlens` to the same length in all packs, by repeating S.
        max_samples: Number of samples in a pack for which `cu_seqlens` is padded; None: that of the largest pack.

    Raises:
        BadDocumentError: A pack has more than `max_samples`.
    """

    def __init__(  # noqa: PLR0913 - each by name
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
        max_samples: int | None = None,
    ) -> None:
        super().__init__(samples, epoch=len(packs), size=size, seed=seed)
        self.packs = packs
        self._padding_token, self._pack_size, self._multiple = padding_token, pack_size, multiple
        limit = packs.max_samples if max_samples is None else max_samples
        if packs.max_samples > limit:
            raise BadDocumentError(
                f"dataset.packed_sequence_specs.packed_metadata_path: states at most {limit} samples in a pack, but a "
                f"pack has {packs.max_samples}. Set the file that describes these packs, or leave it unset."
            )
        # the start of each sample, that of the padding behind them, and the end of the pack
        self._num_boundaries = limit + 2 if pad_cu_seqlens else 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the pack at an index."""
        pack = self._number(index)
        first, stop = self.packs.starts[pack : pack + 2]
        row = concatenate(
            [self._sample(int(sample)) for sample in self.packs.members[first:stop]],
            multiple=self._multiple,
            size=self._pack_size,
            padding_token=self._padding_token,
        )
        # Empty sequences at the end: every pack has the same shape, and attention computes nothing for them.
        missing = max(0, self._num_boundaries - len(row["cu_seqlens"]))
        return {**row, "cu_seqlens": pad(row["cu_seqlens"], (0, missing), value=self._pack_size)}

    def collate(self, packs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate one pack into a micro-batch, with a leading dimension of 1 on every tensor.

        Raises:
            ValueError: There are several packs.
        """
        if len(packs) != 1:
            raise ValueError(
                f"dataset.packed_sequence_specs: {len(packs)} packs in a micro-batch, but a micro-batch is one "
                f"pack. Set micro_batch_size=1; for the same number of tokens use packs of "
                f"{len(packs) * self._pack_size} tokens and divide the global batch size by {len(packs)}."
            )
        return {name: tensor.unsqueeze(0) for name, tensor in packs[0].items()}
