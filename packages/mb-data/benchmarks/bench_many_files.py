"""Benchmark of the start of a run on many files: their checks, and the datasets from cached sample indices.

A blend of many `.bin` and `.idx` pairs is built once, which writes the sample indices, and then again as a start or a
resume does. A row has seconds of this process without imports: this package's checks of all files, its datasets, and
Megatron's builder alone on the same configuration. This package opens a pair when its first sample is read, so the
datasets are also measured with the reading of every training sample. The best of several rounds counts, in alternation,
in processor time and as shares of Megatron's.

    python packages/mb-data/benchmarks/bench_many_files.py [--rounds 3]
"""

import argparse
import tempfile
import time
from pathlib import Path

import mb_host

mb_host.install()
mb_host.quiet()

import numpy as np  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset  # noqa: E402

from mb_data import ByteTokenizer, DatasetBuildContext, GPTDatasetConfig, IndexedWriter  # noqa: E402
from mb_data.data_checks import verify_dataset_files  # noqa: E402
from mb_data.mcore import as_megatron, build_gpt_datasets  # noqa: E402
from mb_data.megatron.conversion import to_megatron  # noqa: E402

SIZES = (50, 2000)
SAMPLES = 4000


def write_pairs(folder, number):
    """Write pairs of 40 documents each, and return their prefixes."""
    random = np.random.default_rng(1)
    prefixes = []
    for index in range(number):
        prefix = folder / f"part{index:04d}"
        with IndexedWriter(prefix, dtype=np.uint16) as writer:
            for length in random.integers(50, 400, 40):
                writer.add_document(random.integers(0, 255, length).tolist())
        prefixes.append(str(prefix))
    return prefixes


def seconds(action):
    started = time.process_time()
    action()
    return time.process_time() - started


def read_all(train):
    for index in range(SAMPLES):
        train[index]


def section(prefixes, cache):
    return GPTDatasetConfig(
        seq_length=128,
        data_path=[item for number, prefix in enumerate(prefixes) for item in (str(1 + number % 7), prefix)],
        split="90,10,0",
        path_to_cache=str(cache),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )


def measure(prefixes, folder, *, rounds):
    """Return the seconds of the checks, of this package's datasets and of Megatron's."""
    context = DatasetBuildContext(
        train_samples=SAMPLES, valid_samples=20, test_samples=0, tokenizer=ByteTokenizer()
    )
    ours = section(prefixes, folder / "ours")
    ours.finalize()
    plain = section(prefixes, folder / "theirs")
    plain.finalize()
    theirs = to_megatron(plain, tokenizer=as_megatron(ByteTokenizer()), path_to_cache=str(folder / "theirs"))
    build = lambda: build_gpt_datasets(ours, context)  # noqa: E731
    build_megatron = lambda: BlendedMegatronDatasetBuilder(  # noqa: E731
        GPTDataset, [SAMPLES, 20, 0], lambda: True, theirs
    ).build()
    actions = {
        "checks": lambda: verify_dataset_files(ours, evaluated=True),
        "datasets": build,
        "Megatron's builder": build_megatron,
        "datasets, all samples": lambda: read_all(build()[0]),
        "Megatron's, all samples": lambda: read_all(build_megatron()[0]),
    }
    found = {name: [seconds(action)] for name, action in actions.items()}
    for _ in range(rounds):
        for name, action in actions.items():
            found[name].append(seconds(action))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefixes = write_pairs(folder, max(SIZES))
        print(f"{'pairs':>6}  {'':<25}{'first, s':>10}{'warm, s':>10}{'of Megatron':>13}")
        for size in SIZES:
            found = measure(prefixes[:size], folder / str(size), rounds=options.rounds)
            for row, times in found.items():
                warm = min(times[1:])
                base = min(found["Megatron's" + (", all samples" if "samples" in row else " builder")][1:])
                print(f"{size:>6}  {row:<25}{times[0]:>10.3f}{warm:>10.3f}{warm / base:>13.2f}")


if __name__ == "__main__":
    main()
