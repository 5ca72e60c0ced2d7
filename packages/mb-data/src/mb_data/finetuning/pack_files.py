"""Packs of tokenized samples, computed once and kept in the cache folder of the samples. No torch."""

import os
import tempfile
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from mb_data.finetuning.first_fit import PackIndex, pack_lengths
from mb_data.finetuning.samples import TokenizedSamples

FORMAT_VERSION = 1
"""Version of the file on disk. Part of its name, so that a change of the format creates new files."""


def pack_samples(samples: TokenizedSamples, *, size: int, multiple: int) -> PackIndex:
    """Pack samples with `pack_lengths`, or load the packs from a file in the folder of the samples.

    Not collective.

    Args:
        samples: The samples to pack.
        size: Length of a pack in tokens.
        multiple: The length of each sample is rounded up to a multiple of this number of tokens.
    """
    file = samples.folder / f"packs-{FORMAT_VERSION}-{len(samples)}-{size}-{multiple}.npz"
    try:
        with np.load(file) as found:
            return PackIndex(members=found["members"], starts=found["starts"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        pass  # missing or damaged: pack again
    taken = -(-samples.lengths // multiple) * multiple
    made = pack_lengths(taken, size=size)
    handle, part = tempfile.mkstemp(dir=samples.folder, prefix=".packs-", suffix=".npz")
    os.close(handle)
    try:
        np.savez(part, members=made.members, starts=made.starts)
        Path(part).replace(file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return made
