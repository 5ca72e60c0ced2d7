"""Benchmark of reading the same texts as JSON lines, compressed JSON lines, CSV and Parquet.

Each variant reads all texts (the Python files of the standard library, several times) as `build_indexed` does, without
tokenizing them. The variants run in alternation, and the best round of each counts. On a shared machine only the ratios
to plain JSON lines are meaningful. Needs the extras `parquet` and `zstd`.

    python packages/mb-data/benchmarks/bench_formats.py [--rounds 5] [--copies 5]
"""

import argparse
import csv
import gzip
import json
import tempfile
import time
from pathlib import Path

import pyarrow
import zstandard
from pyarrow import parquet

from mb_data import TextCorpusConfig
from mb_data.text.documents import read_chunks
from mb_data.text.selection import Selection, SelectionReport
from mb_data.text.sources import read_sources


def read(path):
    """Return the number of documents and of characters in a file."""
    documents = characters = 0
    selection, report = Selection(), SelectionReport()
    for chunk in read_chunks([path], columns=["text"]):
        for text, _ in selection.select(chunk, report):
            documents, characters = documents + 1, characters + len(text)
    return documents, characters


def write_variants(folder, texts):
    """Write the texts in each format. Return name and path of each file, plain JSON lines first."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (folder / "texts.jsonl").write_bytes(lines)
    (folder / "texts.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "texts.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    with (folder / "texts.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["text"], *([text] for text in texts)])
    parquet.write_table(pyarrow.table({"text": texts}), folder / "texts.parquet")
    names = ("texts.jsonl", "texts.jsonl.gz", "texts.jsonl.zst", "texts.csv", "texts.parquet")
    return [folder / name for name in names]


def seconds(path):
    started = time.perf_counter()
    read(path)
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, of which the best counts")
    parser.add_argument("--copies", type=int, default=5, help="number of copies of the standard library")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        texts = [file.path.read_text() for file in read_sources(TextCorpusConfig(seq_length=1))[0]]
        paths = write_variants(Path(name), texts * arguments.copies)
        (found,) = {read(path) for path in paths}
        taken = [[seconds(path) for path in paths] for _ in range(arguments.rounds)]
        sizes = [path.stat().st_size for path in paths]
    best = [min(times) for times in zip(*taken, strict=True)]
    print(f"{found[0]:,} documents, {found[1] / 1e6:.0f} MB of text")
    for path, size, time_taken in zip(paths, sizes, best, strict=True):
        speed = found[1] / time_taken / 1e6
        print(f"{path.name:16} {size / 1e6:7.1f} MB {speed:8,.0f} MB/s of text {best[0] / time_taken:6.2f}x")


if __name__ == "__main__":
    main()
