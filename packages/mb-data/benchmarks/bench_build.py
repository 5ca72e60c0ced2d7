"""Tokens per second of `build_indexed` with one and two workers, beside Megatron's own builder in one thread.

All three tokenize the same JSON lines (the standard library's Python files, once or more) with the same tokenizer, in
the same run, one after the other: read the ratios, not the figures, on a machine that others use too.

    python packages/mb-data/benchmarks/bench_build.py [--repeat 2]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from mb_data import TextCorpusConfig, build_indexed, train_bpe, verify_prefix
from mb_data.corpus import read_sources


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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=1, help="how often the text is in the input")
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [file.path for file in read_sources(TextCorpusConfig(seq_length=1))[0]]
        tokenizer = train_bpe(files, vocab_size=4096, out=folder / "tokenizer.json")
        lines = folder / "text.jsonl"
        lines.write_text("".join(json.dumps({"text": path.read_text()}) + "\n" for path in files) * repeat)
        times = {
            "Megatron's builder, one thread": seconds(
                lambda: build_with_megatron(lines, tokenizer=tokenizer, prefix=folder / "megatron")
            )
        }
        for workers in (1, 2):
            times[f"build_indexed, workers={workers}"] = seconds(
                lambda workers=workers: build_indexed(
                    [lines], tokenizer=tokenizer, prefix=folder / f"ours{workers}", workers=workers
                )
            )
        tokens = verify_prefix(folder / "megatron").tokens
        assert (folder / "ours2.bin").read_bytes() == (folder / "megatron.bin").read_bytes()
    baseline = next(iter(times.values()))
    for what, taken in times.items():
        print(f"{what:32} {tokens / taken:12,.0f} tokens/s {baseline / taken:6.2f}x")


if __name__ == "__main__":
    main()
