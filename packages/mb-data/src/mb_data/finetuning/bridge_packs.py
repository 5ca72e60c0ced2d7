"""Packs in the forms of Megatron-Bridge: Parquet files, and `.npy` files of pickled dictionaries.

A row has `input_ids`, the concatenated samples of a pack; `seq_start_id`, the position at which each begins; and
`loss_mask`, which at position i covers the prediction of token i + 1.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mb_data.build_cache import load_or_build
from mb_data.chat.samples import EncodedSample
from mb_data.errors import BadDocumentError, DataPathError, NotEnoughSamplesError
from mb_data.finetuning.first_fit import PackIndex
from mb_data.finetuning.samples import (
    TokenizationCounts,
    TokenizedSamples,
    digest_files,
    load_samples,
    write_samples,
)
from mb_data.megatron.cached_indices import read_npy_dtype
from mb_data.text.document_rows import arrow_library, read_rows
from mb_data.text.input_files import InputRange
from mb_schema.declared_sizes import check_pickle

COLUMNS = ("input_ids", "loss_mask", "seq_start_id")

_CACHE_FORMAT = 1
_STARTS = "pack-starts.npy"
"""File of the number of samples before each pack, int64 [packs + 1]."""
_BATCH_BYTES = 1 << 24
"""Bytes of Parquet that are read at a time."""
_ARRAY_PICKLE_NAMES = {
    *((module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
    *((module, "scalar") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""Names that the pickle of an array of dictionaries contains. Any other could execute code of its author."""


def load_packs(
    files: list[Path], *, cache_dir: Path, pack_size: int, multiple: int, vocab_size: int
) -> tuple[TokenizedSamples, PackIndex]:
    """Read packs of Megatron-Bridge, or load them from the cache. Not collective.

    Args:
        files: `.npy` and Parquet files, in order.
        cache_dir: Parent folder of the cache.
        pack_size: Maximum length of a pack in tokens.
        multiple: The length of each sample is rounded up to a multiple of this number of tokens.
        vocab_size: Number of entries of the tokenizer.

    Returns:
        The samples of all packs in order, and the assignment of samples to packs.

    Raises:
        BadDocumentError: A file is not one of packs, a pack is too long, or has ids that the tokenizer lacks.
        FormatLibraryError: A file is a Parquet file, and pyarrow is not installed.
        NotEnoughSamplesError: There is no pack.
    """
    key = [_CACHE_FORMAT, pack_size, multiple, vocab_size, digest_files(files)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]

    def build(folder: Path) -> None:
        starts = [0]

        def chunks() -> Iterator[tuple[list[EncodedSample], TokenizationCounts]]:
            for row, location in _rows(files):
                samples = _samples(row, location=location)
                _require_limits(
                    samples, pack_size=pack_size, multiple=multiple, vocab_size=vocab_size, location=location
                )
                starts.append(starts[-1] + len(samples))
                yield samples, TokenizationCounts(samples=len(samples))

        count = write_samples(folder, chunks())
        if count.samples == 0:
            raise NotEnoughSamplesError(f"{files[0]}: has no pack. Pack the samples again.")
        np.save(folder / _STARTS, np.array(starts, np.int64))

    def load(folder: Path, *, reused: bool) -> TokenizedSamples | None:
        return load_samples(folder, reused=reused) if (folder / _STARTS).is_file() else None

    samples = load_or_build(cache_dir / "finetuning" / f"packs-{name}", load=load, build=build)
    starts = np.load(samples.folder / _STARTS)
    return samples, PackIndex(members=np.arange(len(samples), dtype=np.int64), starts=starts)


def read_max_samples(path: Path, *, pack_size: int) -> int:
    """Return the maximum number of samples in a pack that the statistics of packs state.

    Args:
        path: JSON list of objects with `max_samples_per_bin` and `pack_size`, one for each file of packs.
        pack_size: Length of a pack in tokens.

    Raises:
        DataPathError: The file does not exist.
        BadDocumentError: The file is not such a list, or describes packs of another length.
    """
    try:
        statistics = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataPathError(
            f"dataset.packed_sequence_specs.packed_metadata_path: {path} does not exist; it states the maximum number "
            "of samples in a pack. Correct the path, or leave it unset."
        ) from error
    except ValueError as error:
        raise BadDocumentError(f"{path}: is not JSON ({error}). Pack the samples again.") from error
    try:
        max_samples = max(int(of_file["max_samples_per_bin"]) for of_file in statistics)
        sizes = {int(of_file.get("pack_size", pack_size)) for of_file in statistics}
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise BadDocumentError(
            f"{path}: is not a list of objects with max_samples_per_bin ({type(error).__name__}: {error}). Pack the "
            "samples again."
        ) from error
    if sizes != {pack_size}:
        raise BadDocumentError(
            f"{path}: describes packs of {sorted(sizes)} tokens, but packed_sequence_size={pack_size}. Set the file of "
            "these packs."
        )
    return max_samples


def write_packs(samples: TokenizedSamples, packs: PackIndex, path: Path) -> None:
    """Write packs in a form that Megatron-Bridge reads: Parquet, or a pickle for the suffix `.npy`.

    Args:
        samples: The tokenized samples.
        packs: Assignment of samples to packs.
        path: File to write, with the suffix `.parquet` or `.npy`.

    Raises:
        BadDocumentError: The suffix is another.
        FormatLibraryError: The suffix is `.parquet`, and pyarrow is not installed.
    """
    rows = [_row(samples, packs, number) for number in range(len(packs))]
    if path.suffix == ".npy":
        content = np.empty(len(rows), object)
        content[:] = rows
        np.save(path, content, allow_pickle=True)
    elif path.suffix == ".parquet":
        arrow_library(path).write_packs(path, rows)
    else:
        raise BadDocumentError(f"{path}: packs are written as .parquet or .npy. Use one of these suffixes.")


def _row(samples: TokenizedSamples, packs: PackIndex, number: int) -> dict[str, list[int]]:
    """Return a pack as a row. Its loss mask is shifted by one: ours is that of the token itself."""
    ids: list[int] = []
    loss_mask: list[int] = []
    starts: list[int] = []
    for member in packs.members[packs.starts[number] : packs.starts[number + 1]]:
        begin, end = samples.starts[member : member + 2]
        starts.append(len(ids))
        ids += samples.tokens[begin:end].tolist()
        loss_mask += [*samples.loss_mask[begin + 1 : end].tolist(), 0]
    return dict(zip(COLUMNS, (ids, loss_mask, starts), strict=True))


def _rows(files: Iterable[Path]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each row of the files with its location for messages. Nothing in a row is checked yet."""
    for file in files:
        number = 0
        batches = [_read_npy(file)] if file.suffix.lower() == ".npy" else _parquet_batches(file)
        for batch in batches:
            for row in batch:
                number += 1
                yield row, f"{file}: row {number}"


def _parquet_batches(file: Path) -> Iterator[list[dict[str, Any]]]:
    for _, rows, _ in read_rows(InputRange(path=file), columns=COLUMNS, batch_bytes=_BATCH_BYTES):
        yield rows


def _samples(row: Any, *, location: str) -> list[EncodedSample]:
    """Return the samples of a pack, with the mask of each id: the loss never covers the first id of a sample.

    Raises:
        BadDocumentError: A column is missing or is not a list of integers, or the columns contradict each other.
    """
    try:
        columns = [_integers(row[name]) for name in COLUMNS]
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise BadDocumentError(
            f"{location}: is not a pack ({error}); it needs {', '.join(COLUMNS)}, each a list of integers. Pack the "
            "samples again."
        ) from error
    ids, mask, starts = (column.tolist() for column in columns)
    ends = [*starts[1:], len(ids)]
    is_short = any(end - start < 2 for start, end in zip(starts, ends, strict=True))
    if len(mask) != len(ids) or starts[:1] != [0] or is_short:
        raise BadDocumentError(
            f"{location}: is not a pack ({len(ids)} input_ids, {len(mask)} in loss_mask, samples from {starts[:8]}); "
            "samples begin at 0 and have two or more ids. Pack the samples again."
        )
    return [
        EncodedSample(ids=ids[start:end], loss_mask=[False, *map(bool, mask[start : end - 1])])
        for start, end in zip(starts, ends, strict=True)
    ]


def _integers(column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of a row. A mask may be of truth values or of whole floating-point numbers.

    Raises:
        ValueError: It is not a list, or has an item that is not an integer.
    """
    numbers = np.asarray(column)
    if numbers.ndim != 1:
        raise ValueError("a list in a list, or a single number")
    integers = numbers.astype(np.int64)
    if len(numbers) and (numbers.dtype.kind not in "biuf" or (integers != numbers).any()):
        raise ValueError("an item is not an integer")
    return integers


def _require_limits(
    samples: list[EncodedSample], *, pack_size: int, multiple: int, vocab_size: int, location: str
) -> None:
    """Reject a pack that is too long with its padding, or has an id outside of the vocabulary.

    Raises:
        BadDocumentError: It is such a pack.
    """
    # the last id of a sample is a label only
    padded = sum(-(-(len(sample.ids) - 1) // multiple) * multiple for sample in samples)
    if padded > pack_size:
        raise BadDocumentError(
            f"{location}: has {padded} tokens, which do not fit into packs of {pack_size}. Set "
            "dataset.packed_sequence_specs.packed_sequence_size and the seq_length to that of the file, or pack again."
        )
    ids = [number for sample in samples for number in sample.ids]
    wrong = next((number for number in ids if not 0 <= number < vocab_size), None)
    if wrong is not None:
        raise BadDocumentError(
            f"{location}: has the id {wrong}, but the tokenizer has {vocab_size} entries; the samples were tokenized "
            "with another one. Set that tokenizer, or pack the samples again."
        )


def _empty_array(*_arguments: object) -> np.ndarray[Any, Any]:
    """Return an empty array, to which the pickle then assigns shape and content.

    NumPy writes a size here as well; a file could declare one that does not fit into memory.
    """
    return np.empty(0, dtype=object)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler of arrays of plain dictionaries and lists, which rejects anything that could execute code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function or class of NumPy that an array consists of.

        Raises:
            UnpicklingError: The name is another.
        """
        if (module, name) not in _ARRAY_PICKLE_NAMES:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        if name == "_reconstruct":
            return _empty_array
        return super().find_class(module, name)


def _read_npy(file: Path) -> list[Any]:
    """Return the rows of a `.npy` file.

    Raises:
        BadDocumentError: The file is not an array of Python objects, or its pickle refers to anything else.
    """
    try:
        with file.open("rb") as stream:
            dtype = read_npy_dtype(stream)
            if not dtype.hasobject:
                raise ValueError(f"it contains {dtype} instead of dictionaries")
            content = stream.read()
        check_pickle(content)
        array = _ArrayUnpickler(io.BytesIO(content)).load()
        rows: list[Any] = array.tolist()
    except (
        pickle.UnpicklingError,
        ValueError,
        EOFError,
        AttributeError,
        LookupError,
        TypeError,
        OverflowError,
    ) as error:
        raise BadDocumentError(
            f"{file}: is not an array of packs ({error}); nothing else is read from a pickle, which could execute "
            "code. Pack the samples again, or write them as .parquet."
        ) from error
    return rows if isinstance(rows, list) else [rows]  # an array without dimensions holds one row
