"""The vocabulary of names and prose: words that are unclear, or that have a standard term in the field."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).name
SUFFIXES = {".py", ".md", ".toml"}

INSTEAD = {
    r"told|tells?|telling|says?|said|saying|speaks?|spoken?|spoke": "report, log, print, return, state",
    r"voices?": "RankLogger, Console",
    r"heard|hears?": "receives, handlers",
    r"wish(es|ed|ing)?": "request, stop_requested, setting",
    r"trainees?": "TrainingModel",
    r"nobody|somebody|whoever": "the caller, no rank, the passive",
    r"mend(s|ed|ing)?": "fix, patch, workaround",
    r"anew|once more": "again, restart",
    r"stands|stood": "is, is set, is stored, remains",
    r"alike": "identical on all ranks, equal, similar",
    r"handed|handing": "passed",
    r"beside": "alongside, next to, in addition to, with",
    r"lies": "is, is stored",
    r"lasting": "persistent",
    r"(?<!--)pictures?|paint(s|ed)?": "plot, chart, colour, render",
    r"(of|from) before": "previous",
    r"go on|goes on|went on|going on|gone on": "resume, continue",
    r"carried out|carries out|carry out": "applied, implemented, supported",
    r"under way": "in flight, in progress",
    r"one's own|of (one's|your) own": "custom, user-defined",
    r"who asks?|asked|asks": "the caller; requested, queried, set",
    r"laps?": "interval",
}
"""Patterns of words that are wrong in any context, and the words to take instead."""

PARTS = {
    **{path.name: [path] for path in sorted((ROOT / "packages").glob("mb-*"))},
    "meta": [ROOT / "meta"],
    "tests": [ROOT / "tests"],
    "root": [ROOT / name for name in ("README.md", "noxfile.py", "pyproject.toml", ".github")],
}

PENDING: set[str] = set()
"""Parts that still have such words; none may be added."""

PATTERNS = {
    re.compile(rf"(?<![a-z.])({words})(?![a-z])", re.IGNORECASE): instead
    for words, instead in INSTEAD.items()
}


def split_words(text: str) -> str:
    """Separate the words of identifiers, and join lines, so that phrases across a line break are found."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")
    return re.sub(r"\s+(#\s+)?", " ", text)


def wrong_words(text: str) -> list[str]:
    """Return each wrong word of a text with its surroundings and the words to take instead."""
    text = split_words(text)
    return [
        f"{match[0]!r} in '{text[max(0, match.start() - 40) : match.end() + 40]}': {instead}"
        for pattern, instead in PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def files_of(part: str) -> list[Path]:
    """Return the source and documentation files of a part."""
    return [
        file
        for top in PARTS[part]
        for file in sorted([top] if top.is_file() else top.rglob("*"))
        if file.suffix in SUFFIXES and file.name != HERE
    ]


def findings_of(part: str) -> list[str]:
    """Return the wrong words in names and contents of a part's files."""
    found = [
        f"{file.relative_to(ROOT)}: name: {word}"
        for file in files_of(part)
        for word in wrong_words(file.name)
    ]
    return found + [
        f"{file.relative_to(ROOT)}: {word}"
        for file in files_of(part)
        for word in wrong_words(file.read_text())
    ]


@pytest.mark.parametrize("part", PARTS)
def test_names_and_prose_use_the_words_of_the_field(part):
    findings = findings_of(part)
    if part in PENDING:
        assert findings, f"{part} has no wrong word any more: remove it from PENDING"
    else:
        assert findings == []


def test_wrong_words_are_found_in_identifiers_and_across_lines():
    found = wrong_words("exit_wish = BuiltAnew()\n# it goes\n# on; file.tell(), mendable, a stand-in")
    assert [each.split("'")[1].lower() for each in found] == ["wish", "anew", "goes on"]


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or PARTS:
        print(*findings_of(name), sep="\n")
