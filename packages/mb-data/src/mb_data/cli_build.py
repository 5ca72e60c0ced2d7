"""Command `build`: text to a `.bin`/`.idx` pair."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mb_data.build import build_indexed
from mb_data.cli_progress import print_result, progress_bar
from mb_data.errors import PairExistsError
from mb_data.tokenizer_loading import load_tokenizer

_NEXT = """Train on it with `mb pretrain --config FILE`, where FILE holds:

dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: {prefix}
  split: "90,5,5"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {{tokenizer_type: {kind}, tokenizer_model: {tokenizer}}}"""


def build(
    inputs: Sequence[Path],
    *,
    tokenizer: Path,
    prefix: Path,
    workers: int,
    json_key: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write PREFIX.bin and PREFIX.idx, with a progress bar on a terminal. Return the exit code.

    Raises:
        PairExistsError: There is a pair, and `overwrite` is False.
        The errors of `load_tokenizer` and `build_indexed`.
    """
    if not overwrite and prefix.with_name(f"{prefix.name}.bin").exists():
        raise PairExistsError(f"{prefix}.bin: is there already. Choose another --out, or give --overwrite.")
    with progress_bar("tokenizing") as report:
        summary = build_indexed(
            inputs,
            tokenizer=load_tokenizer(tokenizer),
            prefix=prefix,
            workers=workers,
            json_key=json_key,
            progress=report,
        )
    kind = "SentencePieceTokenizer" if tokenizer.suffix == ".model" else "HuggingFaceTokenizer"
    lines = [f"{prefix}: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype})"]
    lines.append(_NEXT.format(prefix=prefix, tokenizer=tokenizer, kind=kind))
    print_result({"prefix": str(prefix), **asdict(summary)}, as_json=as_json, lines=lines)
    return 0
