"""Where the documents of a sharded data set come from: shard, file and line."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import numpy as np

from mb_data.text.selection import SelectionReport
from mb_data.text.shards.files import read_array
from mb_data.text.shards.manifest import is_sharded, read_manifest
from mb_data.text.shards.plan import read_options
from mb_data.text.shards.shard import array_path, read_shard_documents


def document_shards(prefix: str | Path, documents: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the shard of each document, and its number in the shard, both counted from 0. Empty for a pair."""
    if not is_sharded(prefix):
        return {}
    starts = np.array([0, *accumulate(file.documents for file in read_manifest(prefix))])
    shards = {number: int(np.searchsorted(starts, number, side="right")) - 1 for number in documents}
    return {number: (shard, number - int(starts[shard])) for number, shard in shards.items()}


def document_origins(prefix: str | Path, documents: Iterable[int]) -> dict[int, str]:
    """Return the file and line of each document, as in messages. Empty for a pair, whose build records no inputs.

    The inputs of the shards are read again up to the documents: some seconds for each shard of a gigabyte.

    Raises:
        ShardPlanError: An input changed since the build.
        FileNotFoundError: An input is not there any more.
    """
    folder = Path(f"{prefix}.shards")
    wanted: dict[int, dict[int, int]] = defaultdict(dict)
    for number, (shard, position) in document_shards(prefix, documents).items():
        wanted[shard][position] = number
    origins = {}
    for shard, numbers in wanted.items():
        options = read_options(folder)
        is_dropped = (
            read_array(array_path(folder, shard, "duplicates")) if options.selection.deduplicate else None
        )
        position, last, report = 0, max(numbers), SelectionReport()
        selected = (
            location
            for chunk in read_shard_documents(folder, shard, options)
            for _, location in options.selection.select(chunk, report)
        )
        for ordinal, location in enumerate(selected):
            if is_dropped is not None and is_dropped[ordinal]:
                continue
            if position in numbers:
                origins[numbers[position]] = str(location)
            if position == last:
                break
            position += 1
    return origins
