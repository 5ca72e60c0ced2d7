"""`mb data build`."""

from collections.abc import Sequence
from pathlib import Path

from mb_data import build_indexed, load_tokenizer
from mb_trainer.commands.errors import OutputExistsError, reported
from mb_trainer.console import Voice

NEXT = """Train on it with `mb pretrain --config FILE`, where FILE holds:

dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: {prefix}
  split: "90,5,5"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {{tokenizer_type: HuggingFaceTokenizer, tokenizer_model: {tokenizer}}}"""


def build(
    inputs: Sequence[Path], *, tokenizer: Path, prefix: Path, workers: int, json_key: str, overwrite: bool
) -> int:
    """Write PREFIX.bin and PREFIX.idx, with a progress bar on a terminal; return the exit code."""
    voice = Voice()

    def work() -> int:
        if not overwrite and prefix.with_name(f"{prefix.name}.bin").exists():
            raise OutputExistsError(
                f"{prefix}.bin: is there already. Choose another --out, or give --overwrite."
            )
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
        voice.say(NEXT.format(prefix=prefix, tokenizer=tokenizer))
        return 0

    return reported(work)
