"""Generator of addition problems as fine-tuning data: every pair of numbers once, in three files."""

import json
from pathlib import Path

import numpy as np

from mb_data.build_cache import load_or_build, resolve_cache_dir
from mb_data.finetuning.config import SumsFinetuningConfig

_HELD_OUT = {"validation": 0.1, "test": 0.1}


def write_addition_samples(config: SumsFinetuningConfig) -> Path:
    """Write the samples, unless they are in the cache, and return their folder.

    A tenth of the pairs is held out for validation and a tenth for the test split, identical for every seed. Concurrent
    calls from several processes are safe. Not collective.
    """
    folder = resolve_cache_dir(config.cache_dir) / "finetuning" / f"sums-{config.largest}"

    def build(building: Path) -> None:
        size = config.largest + 1
        pairs = np.random.default_rng(size).permutation(size * size)
        begin = 0
        for split, part in {**_HELD_OUT, "training": 1.0}.items():
            end = len(pairs) if part == 1.0 else begin + max(1, round(part * len(pairs)))
            lines = [_format_line(*divmod(int(pair), size)) for pair in pairs[begin:end]]
            (building / f"{split}.jsonl").write_text("".join(lines))
            begin = end

    return load_or_build(folder, load=_load, build=build)


def _format_line(first: int, second: int) -> str:
    return json.dumps({"input": f"How much is {first} + {second}?", "output": str(first + second)}) + "\n"


def _load(folder: Path, *, reused: bool) -> Path | None:
    return folder if (folder / "training.jsonl").is_file() else None
