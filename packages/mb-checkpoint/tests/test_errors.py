"""Base class of the errors, and the message of the program if its extra is not installed."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mb_checkpoint
from mb_checkpoint import CheckpointError

SHARED_FILES = {"_lazy", "_rules", "strict_fields", "value_types"}
"""Modules that are identical in several packages, and therefore cannot use the base class of one."""
BETWEEN_RANKS = {"RanksFailedError", "RankZeroTimeoutError"}
"""Failures of any kind on another rank, which callers inside the package convert or let through with a traceback."""
SOURCE = Path(mb_checkpoint.__file__).parent


def error_classes():
    """Yield module and name of each public error class of the package, without importing the modules."""
    for file in sorted(SOURCE.glob("*.py")):
        if file.stem in SHARED_FILES:
            continue
        for node in ast.parse(file.read_text()).body:
            is_error = isinstance(node, ast.ClassDef) and any(
                ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases
            )
            if is_error and not node.name.startswith("_"):
                yield f"mb_checkpoint.{file.stem}", node.name


def test_every_public_error_derives_from_the_base():
    found = {name: getattr(importlib.import_module(module), name) for module, name in error_classes()}
    assert {"CheckpointSaveError", "ManifestError"} <= {*found}
    others = {name for name, error in found.items() if not issubclass(error, CheckpointError)}
    assert others == BETWEEN_RANKS
    assert [name for name, error in found.items() if getattr(error, "bad_input", False)] == []


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_program_names_it(missing, tmp_path):
    if missing == "rich":
        pytest.importorskip("typer", reason="needs mb-checkpoint[cli]")
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['mb-checkpoint', 'verify', {str(tmp_path)!r}]\n"
        "from mb_checkpoint.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    advice = f'mb-checkpoint: needs {missing}, which is not installed. Install it: pip install "mb-checkpoint[cli]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", advice)
