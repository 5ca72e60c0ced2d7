"""Benchmark of `build_indexed` with one and two workers, compared with Megatron's builder in one thread.

Another row is the bare `encode_batch` of the tokenizers library with its threads on all cores, without reading and
writing files. All tokenize the same JSON lines (the Python files of the standard library) with the same tokenizer, in
alternation, and the best round of each counts. On a shared machine only the ratios are meaningful.

    python packages/mb-data/benchmarks/bench_build.py [--rounds 3]
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokenizers import Tokenizer

from mb_data import TextCorpusConfig, build_indexed, train_bpe, verify_prefix
from mb_data.sources import read_sources


def build_with_megatron(lines, *, tokenizer, prefix):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    with lines.open() as stream:
        for line in stream:
            ids = [*tokenizer.encode(json.loads(line)["text"]), tokenizer.eod]
            builder.add_document(torch.tensor(ids).numpy(), [len(ids)])
    builder.finalize(f"{prefix}.idx")


def seconds(action):
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


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
    variants["bare encode_batch, all cores"] = lambda: [each.ids for each in library.encode_batch(texts)]
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
    best = [min(times) for times in zip(*taken, strict=True)]
    for name, time_taken in zip(variants, best, strict=True):
        print(f"{name:32} {tokens / time_taken:12,.0f} tokens/s {best[0] / time_taken:6.2f}x")


if __name__ == "__main__":
    main()
