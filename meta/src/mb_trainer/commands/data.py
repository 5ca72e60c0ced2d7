"""`mb data build`."""

from collections.abc import Sequence
from pathlib import Path

from mb_data import build_indexed, load_tokenizer
from mb_trainer.commands.errors import reported
from mb_trainer.console import Voice


def build(inputs: Sequence[Path], *, tokenizer: Path, prefix: Path, workers: int, json_key: str) -> int:
    """Write PREFIX.bin and PREFIX.idx, with a progress bar on a terminal; return the exit code."""
    voice = Voice()

    def work() -> int:
        with voice.progress("tokenizing", 1) as bar:
            summary = build_indexed(
                inputs,
                tokenizer=load_tokenizer(tokenizer),
                prefix=prefix,
                workers=workers,
                json_key=json_key,
                progress=lambda stage, done, total: bar.update(done, total=total, label=stage),
            )
        voice.say(f"{prefix}: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype})")
        voice.say(
            f"Train on it with: mb pretrain --config FILE, where FILE sets dataset.data_path to {prefix}"
        )
        return 0

    return reported(work)
