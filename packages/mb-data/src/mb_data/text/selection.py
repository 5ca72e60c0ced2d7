"""Documents that are kept: their text, the limits and functions of the user, and what fell out, with its reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal

from mb_data.errors import BadDocumentError, DocumentFunctionError
from mb_data.text.documents import DocumentChunk, Location, Row, parse_document, text_of_row

KEPT, DUPLICATE, BAD = "kept", "duplicate", "bad line"
"""Reasons with a name; the others name a limit or function."""

MAX_SAMPLES = 3
"""Texts that are kept to look at, for each reason."""

MAX_BAD_LINES = 100
"""Messages of bad lines that are kept; all are counted."""

_SAMPLE_CHARACTERS = 200

DIGEST_BYTES = 16
"""Size of the hash by which equal texts are found: two of 10^12 different texts are equal with 10^-15."""


@dataclass(kw_only=True)
class SelectionReport:
    """Documents by reason, with some of their texts."""

    documents: dict[str, int] = field(default_factory=dict)
    """Documents that were kept or fell out, by reason."""
    samples: dict[str, list[str]] = field(default_factory=dict)
    """The beginnings of the first texts, by reason."""
    bad_lines: list[str] = field(default_factory=list)
    """Messages of the first bad lines, in place of samples."""

    def add(self, reason: str, text: str) -> None:
        """Count a document that has a text."""
        self.documents[reason] = self.documents.get(reason, 0) + 1
        samples = self.samples.setdefault(reason, [])
        if len(samples) < MAX_SAMPLES:
            samples.append(text[:_SAMPLE_CHARACTERS])

    def add_bad_line(self, message: str) -> None:
        """Count a line that is no document."""
        self.documents[BAD] = self.documents.get(BAD, 0) + 1
        if len(self.bad_lines) < MAX_BAD_LINES:
            self.bad_lines.append(message)

    def merge(self, other: "SelectionReport") -> None:
        """Add the documents of another report."""
        for reason, number in other.documents.items():
            self.documents[reason] = self.documents.get(reason, 0) + number
        for reason, texts in other.samples.items():
            self.samples[reason] = [*self.samples.get(reason, []), *texts][:MAX_SAMPLES]
        self.bad_lines = [*self.bad_lines, *other.bad_lines][:MAX_BAD_LINES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which documents are kept, and their text. Empty texts and empty lines never are, and are not counted."""

    json_key: str = "text"
    """Key of the text in JSON objects, and column in tables."""
    text_function: str | None = None
    """`FILE.py:NAME`, a function of a row that returns its text, in place of `json_key`. The row of a text file has
    its text at `json_key`."""
    filter_function: str | None = None
    """`FILE.py:NAME`, a function of a row that returns whether it is kept."""
    min_characters: int = 0
    max_characters: int | None = None
    deduplicate: bool = False
    """Keep only the first of equal texts. The texts that `select` yields are compared by its caller, in their order."""
    bad_lines: Literal["stop", "skip"] = "stop"
    """What is done with a line or file that is no document: raise, or count it and continue."""

    @property
    def columns(self) -> list[str] | None:
        """Columns of tables that are required; None: all, because a function may read any."""
        return None if self.text_function or self.filter_function else [self.json_key]

    def select(self, chunk: DocumentChunk, report: SelectionReport) -> Iterator[tuple[str, Location]]:
        """Yield the texts of a chunk that are kept, each with its location. Add the others to the report.

        Raises:
            BadDocumentError: A document cannot be read, and `bad_lines` is "stop".
            DocumentFunctionError: A function cannot be loaded, raised, or returned something else.
        """
        for document, location in chunk.located():
            try:
                row = parse_document(document, json_key=self.json_key, location=location)
                if row is None:
                    continue
                is_kept = self.filter_function is None or self._call(
                    self.filter_function, row, location, returns=bool
                )
                if self.text_function is None:
                    text = text_of_row(row, json_key=self.json_key, location=location)
                else:
                    text = str(self._call(self.text_function, row, location, returns=str))
            except BadDocumentError as error:
                if self.bad_lines == "stop":
                    raise
                report.add_bad_line(str(error))
                continue
            reason = self._limit(text) if is_kept else f"rejected by {self.filter_function}"
            if text and reason is None:
                yield text, location
            elif text and reason is not None:
                report.add(reason, text)

    def _limit(self, text: str) -> str | None:
        if len(text) < self.min_characters:
            return f"shorter than {self.min_characters} characters"
        if self.max_characters is not None and len(text) > self.max_characters:
            return f"longer than {self.max_characters} characters"
        return None

    @staticmethod
    def _call(reference: str, row: Row, location: Location, *, returns: type) -> Any:
        """Call a function of the user on a row.

        Raises:
            DocumentFunctionError: It raises an exception, or returns another type.
        """
        try:
            value = load_function(reference)(row)
        except DocumentFunctionError:
            raise
        except Exception as error:
            raise DocumentFunctionError(
                f"{location}: {reference} raised {type(error).__name__}: {error}. Correct the function; it is called "
                "with each row, a mapping."
            ) from error
        if not isinstance(value, returns):
            raise DocumentFunctionError(
                f"{location}: {reference} returned {value!r:.40}, of type {type(value).__name__}; it must return a "
                f"{returns.__name__}. Correct the function."
            )
        return value


@cache
def load_function(reference: str) -> Callable[[Row], object]:
    """Return a function of a Python file, `FILE.py:NAME`. The file is executed once in a process.

    Raises:
        DocumentFunctionError: The file or the function does not exist, or the file raised.
    """
    file, _, name = reference.rpartition(":")
    if not file or not Path(file).is_file():
        raise DocumentFunctionError(
            f"{reference}: no such file as {file or reference}; a function is named FILE.py:NAME. Correct the path."
        )
    spec = spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise DocumentFunctionError(f"{reference}: {file} is not a Python file. Name it FILE.py.")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DocumentFunctionError(
            f"{reference}: {file} raised {type(error).__name__}: {error}. Correct the file."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise DocumentFunctionError(f"{reference}: {file} has no function {name!r}. Correct the name.")
    return function  # type: ignore[no-any-return] # checked above


def text_digest(text: str) -> bytes:
    """Return the hash by which equal texts are found."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
