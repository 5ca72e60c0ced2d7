"""Imports of the libraries of this package's extras, when they are used. Standard library only."""

from importlib import import_module
from typing import Any

from mb_data.errors import DataError, DataPathError, FormatLibraryError


def import_library(
    module: str,
    *,
    where: str,
    purpose: str,
    extra: str,
    library: str | None = None,
    distribution: str | None = None,
    error: type[DataError] = FormatLibraryError,
) -> Any:
    """Import a library, or an adapter module of this package that imports it.

    Args:
        module: The module.
        where: Path or setting that needs it, for the message.
        purpose: What the library does.
        extra: Extra of this package that installs it.
        library: Name under which an adapter imports the library; None: the module.
        distribution: Name of the library, if it is another one.
        error: Class of the error.

    Raises:
        FormatLibraryError: Or `error`: the library is not installed.
    """
    library = library or module
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != library:
            raise
        raise error(
            f"{where}: the library {distribution or library} is not installed; it {purpose}. Install it: "
            f'pip install "mb-data[{extra}]".'
        ) from missing


def load_dataset(path: str, subset: str | None, *, advice: str, **options: Any) -> Any:
    """Return what `datasets.load_dataset` returns for the section's `hf_dataset`.

    Raises:
        DataPathError: The dataset cannot be read.
        FormatLibraryError: The library datasets is not installed.
    """
    library = import_library(
        "datasets", where="dataset.hf_dataset", purpose="reads documents and rows", extra="streaming"
    )
    try:
        return library.load_dataset(path, subset, **options)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataPathError(f"dataset.hf_dataset: {path!r} cannot be read ({reason}). {advice}") from error
