"""Command `build`: text to a `.bin`/`.idx` pair."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mb_data.cli.progress import print_result, progress_bar
from mb_data.errors import DataPathError, PairExistsError
from mb_data.text.build import build_indexed
from mb_data.text.indexed import pair_paths
from mb_data.tokenizers.base import ByteTokenizer, Tokenizer
from mb_data.tokenizers.loading import load_tokenizer

_NEXT = """Train on it with `mb pretrain --config FILE`, where FILE holds:

dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: {prefix}
  split: "90,5,5"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {tokenizer}"""


def build(
    inputs: Sequence[Path],
    *,
    tokenizer: Path,
    prefix: str,
    workers: int,
    json_key: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write PREFIX.bin and PREFIX.idx, with a progress bar on a terminal. Return the exit code.

    Raises:
        DataPathError: The prefix is a folder or has the suffix of a file of a pair.
        PairExistsError: A file of the pair exists, and `overwrite` is False.
        The errors of `load_tokenizer` and `build_indexed`.
    """
    _check_prefix(prefix, overwrite=overwrite)
    loaded = load_tokenizer(tokenizer)
    with progress_bar("tokenizing") as report:
        summary = build_indexed(
            inputs,
            tokenizer=loaded,
            prefix=prefix,
            workers=workers,
            json_key=json_key,
            progress=report,
        )
    lines = [f"{prefix}: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype})"]
    lines.append(_NEXT.format(prefix=prefix, tokenizer=_section(loaded, tokenizer)))
    print_result({"prefix": prefix, **asdict(summary)}, as_json=as_json, lines=lines)
    return 0


def _check_prefix(prefix: str, *, overwrite: bool) -> None:
    path = Path(prefix)
    if prefix.endswith("/"):
        raise DataPathError(
            f"--out: {prefix} is a folder, but a pair needs a name. Use, for example, {path / 'mine'}."
        )
    if path.suffix in (".bin", ".idx"):
        raise DataPathError(f"--out: {prefix} has a suffix, which is added. Use {path.with_suffix('')}.")
    existing = [file for file in pair_paths(prefix) if file.exists()]
    if existing and not overwrite:
        raise PairExistsError(f"{existing[0]}: exists already. Choose another --out, or pass --overwrite.")


def _section(tokenizer: Tokenizer, path: Path) -> str:
    """Return the tokenizer section of a run, as YAML."""
    if isinstance(tokenizer, ByteTokenizer):
        return "{tokenizer_type: ByteTokenizer}"
    kind = "SentencePieceTokenizer" if path.suffix == ".model" else "HuggingFaceTokenizer"
    return f"{{tokenizer_type: {kind}, tokenizer_model: {path}}}"
