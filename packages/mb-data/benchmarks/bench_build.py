"""Benchmark of `build_indexed` with one and two workers, compared with Megatron's builder in one thread.

Other rows are the bare `encode_batch` and `encode_batch_fast` of the tokenizers library with its threads on all cores,
and on one, without reading and writing files. All tokenize the same JSON lines (the Python files of the standard
library) with the same tokenizer, in alternation, and the best round of each counts. On a shared machine only the ratios
are meaningful, and the processor time, which includes that of the worker processes, more than the elapsed one.

    python packages/mb-data/benchmarks/bench_build.py [--rounds 3]
"""

import argparse
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokenizers import Tokenizer

from mb_data import TextCorpusConfig, build_indexed, train_bpe, verify_prefix
from mb_data.text.sources import read_sources

BARE = 3
"""Position of the row that the others are compared with: encode_batch of the library on all cores."""


def build_with_megatron(lines, *, tokenizer, prefix):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    with lines.open() as stream:
        for line in stream:
            ids = [*tokenizer.encode(json.loads(line)["text"]), tokenizer.eod]
            builder.add_document(torch.tensor(ids).numpy(), [len(ids)])
    builder.finalize(f"{prefix}.idx")


def seconds(action):
    """Return the elapsed seconds, and those of all processors in this process and its children."""
    started, before = time.perf_counter(), os.times()
    action()
    after = os.times()
    return time.perf_counter() - started, sum(after[:4]) - sum(before[:4])


def encode_bare(encode, texts, *, threads):
    os.environ["TOKENIZERS_PARALLELISM"] = threads
    try:
        return [each.ids for each in encode(texts)]
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]


def candidates(lines, *, tokenizer, folder):
    """Return the variants as functions without arguments."""
    library, texts = Tokenizer.from_file(str(folder / "tokenizer.json")), read_texts(lines)
    variants = {
        "Megatron's builder, one thread": partial(
            build_with_megatron, lines, tokenizer=tokenizer, prefix=folder / "megatron"
        )
    }
    for workers in (1, 2):
        variants[f"build_indexed, workers={workers}"] = partial(
            build_indexed, [lines], tokenizer=tokenizer, prefix=folder / f"ours{workers}", workers=workers
        )
    for name in ("encode_batch", "encode_batch_fast"):
        encode = getattr(library, name)
        variants[f"bare {name}, all cores"] = partial(encode_bare, encode, texts, threads="true")
        variants[f"bare {name}, one core"] = partial(encode_bare, encode, texts, threads="false")
    return variants


def read_texts(lines):
    return [json.loads(line)["text"] for line in lines.open()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, of which the best counts")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [file.path for file in read_sources(TextCorpusConfig(seq_length=1))[0]]
        tokenizer = train_bpe(files, vocab_size=4096, out=folder / "tokenizer.json")
        lines = folder / "text.jsonl"
        lines.write_text("".join(json.dumps({"text": path.read_text()}) + "\n" for path in files))
        variants = candidates(lines, tokenizer=tokenizer, folder=folder)
        taken = [[seconds(variant) for variant in variants.values()] for _ in range(rounds)]
        tokens = verify_prefix(folder / "megatron").tokens
        assert (folder / "ours2.bin").read_bytes() == (folder / "megatron.bin").read_bytes()
    base = [min(times) for times in zip(*(each[BARE] for each in taken), strict=True)]
    print(f"{'':34}{'tokens/s':>12}{'of bare':>9}{'tokens/s of processor':>23}{'of bare':>9}")
    for position, name in enumerate(variants):
        elapsed, processor = (min(times) for times in zip(*(each[position] for each in taken), strict=True))
        print(
            f"{name:34}{tokens / elapsed:>12,.0f}{base[0] / elapsed:>9.2f}{tokens / processor:>23,.0f}"
            f"{base[1] / processor:>9.2f}"
        )


if __name__ == "__main__":
    main()
