"""Fixtures with small data."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mb_data import ByteTokenizer, IndexedWriter

sys.path.insert(
    0, str(Path(__file__).parent)
)  # ranks inherit the path; tests import servers and programs by name

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Forty short text files in two folders, a hidden one, and one that is not text."""
    folder = tmp_path / "text"
    for number in range(40):
        path = folder / WORDS[number % 2] / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(f"{word}{number}" for word in WORDS) * 3)
    (folder / ".hidden.txt").write_text("not read")
    (folder / "image.bin").write_bytes(b"\xff\xfe\x00")
    return folder


@pytest.fixture
def write_pair(tmp_path: Path) -> Callable[..., str]:
    """Function that writes documents of ten equal tokens and an end-of-document token, and returns the prefix."""

    def write(name: str, *, documents: int, first: int = 0) -> str:
        with IndexedWriter(tmp_path / name, dtype="uint16") as writer:
            for number in range(documents):
                writer.add_document([(first + number) % 256] * 10 + [ByteTokenizer.eod])
        return str(tmp_path / name)

    return write


@pytest.fixture
def prefix(write_pair: Callable[..., str]) -> str:
    """A pair of a hundred documents."""
    return write_pair("pair", documents=100)
