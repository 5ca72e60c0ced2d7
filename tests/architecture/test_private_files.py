"""No package writes to a predictable name in a shared folder, or makes a file that other users can write to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import PACKAGES

import mb_trainer

SOURCES = [package.source for package in PACKAGES if package.module != "mb_trainer"]
SOURCES += [Path(mb_trainer.__file__).parent]
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
PREDICTABLE = ("mktemp", "gettempdir", "mkfifo")
"""Functions that return or make a name that others can guess, or that is not created with it."""
READABLE_BY_OTHERS = 0o077
ALLOWED = {
    "mb_config/rules/distributed.py: '/tmp/trace_'": "an example of a rule; nothing is written there",
    "mb_guard/doctor.py: '/dev/shm'": "its size is reported",
    "mb_guard/machine.py: '/dev/shm'": "its size is read",
}
"""Finding ("file: what") to the reason why it is right."""


def name_of(function: ast.expr) -> str:
    """Return the last part of the name of a called function."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_world_open(call: ast.Call) -> bool:
    """Return whether a call gives a new file rights for others, or takes the umask away."""
    name, text = name_of(call.func), ast.unparse(call)
    numbers = [
        each.value
        for each in ast.walk(call)
        if isinstance(each, ast.Constant) and isinstance(each.value, int)
    ]
    if name in ("chmod", "fchmod", "umask"):
        return any(number & READABLE_BY_OTHERS for number in numbers) or name == "umask"
    if name == "mkdir":
        modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
        return any(isinstance(mode, ast.Constant) and mode.value & 0o022 for mode in modes)
    if name == "open" and "O_CREAT" in text:
        return "O_EXCL" not in text or not numbers or any(number & READABLE_BY_OTHERS for number in numbers)
    return False


def exposed_in(tree: ast.AST) -> Iterator[str]:
    """Yield what in a module names a shared folder, guesses a name, or opens a file to others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if any(node.value == folder or node.value.startswith(f"{folder}/") for folder in SHARED_FOLDERS):
                yield repr(node.value)
        elif isinstance(node, ast.Call) and (name_of(node.func) in PREDICTABLE or is_world_open(node)):
            yield ast.unparse(node)


@pytest.mark.parametrize("folder", SOURCES, ids=lambda folder: folder.name)
def test_temporary_names_are_random_and_new_files_private(folder):
    found = [
        f"{file.relative_to(folder.parent)}: {what}"
        for file in sorted(folder.rglob("*.py"))
        for what in exposed_in(ast.parse(file.read_text()))
    ]
    assert [each for each in found if each not in ALLOWED] == []


@pytest.mark.parametrize("line", [
    "open('/tmp/mb.lock', 'w')",
    "Path('/dev/shm') / name",
    "tempfile.mktemp()",
    "Path(tempfile.gettempdir(), 'mb')",
    "os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)",
    "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)",
    "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
    "path.chmod(0o777)",
    "os.umask(0)",
    "path.mkdir(mode=0o777)",
])  # fmt: skip
def test_an_exposed_file_is_found(line):
    assert [*exposed_in(ast.parse(line))] != []


def test_private_files_are_not_taken_for_exposed_ones():
    line = "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600); path.chmod(0o600); path.mkdir(); mkdtemp()"
    assert [*exposed_in(ast.parse(line))] == []
