"""Local files of a streamed dataset. Standard library only."""

from glob import glob

from mb_data.errors import DataPathError
from mb_data.streaming.config import HuggingFaceStreamConfig

_FORMATS = ("json", "csv", "parquet", "text", "arrow")
"""Values of `hf_dataset` that are formats of files; the files of another dataset are relative to it."""


def require_stream_files(config: HuggingFaceStreamConfig) -> None:
    """Require that each local path or pattern of `hf_data_files` names a file. URLs are not looked at.

    Raises:
        DataPathError: one of them does not.
    """
    given = config.hf_data_files
    patterns = [given] if isinstance(given, str) else given or []
    if config.hf_dataset not in _FORMATS:
        return
    for pattern in patterns:
        if "://" not in pattern and not glob(pattern, recursive=True):  # noqa: PTH207 - may be absolute
            raise DataPathError(
                f"dataset.hf_data_files: no file matches {pattern!r}. The documents are read from it. Correct the path."
            )
