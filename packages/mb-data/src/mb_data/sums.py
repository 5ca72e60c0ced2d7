"""Sums as fine-tuning data: every pair of numbers once, in three files."""

import json
from pathlib import Path

import numpy as np

from mb_data.finetuning_config import SumsFinetuningConfig
from mb_data.prepared import cache_folder, found_or_made

_HELD_BACK = {"validation": 0.1, "test": 0.1}


def write_sums(config: SumsFinetuningConfig) -> Path:
    """Write the questions, or find them written already, and return their folder.

    A tenth of the pairs is for validation and a tenth for the test, the same ones for every seed. Several processes
    may call it at once. Not collective.
    """
    folder = cache_folder(config.cache_dir) / "finetuning" / f"sums-{config.largest}"

    def build(place: Path) -> None:
        size = config.largest + 1
        pairs = np.random.default_rng(size).permutation(size * size)
        begin = 0
        for split, part in {**_HELD_BACK, "training": 1.0}.items():
            end = len(pairs) if part == 1.0 else begin + max(1, round(part * len(pairs)))
            lines = [_line(*divmod(int(pair), size)) for pair in pairs[begin:end]]
            (place / f"{split}.jsonl").write_text("".join(lines))
            begin = end

    return found_or_made(folder, find=_find, build=build)


def _line(first: int, second: int) -> str:
    return json.dumps({"input": f"How much is {first} + {second}?", "output": str(first + second)}) + "\n"


def _find(folder: Path, *, reused: bool) -> Path | None:
    return folder if (folder / "training.jsonl").is_file() else None
