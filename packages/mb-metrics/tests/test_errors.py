"""Base class of the errors, and the message of the program where its extra is not installed."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mb_metrics
from mb_metrics import MetricsError

SOURCE = Path(mb_metrics.__file__).parent


def error_classes():
    """Yield module and name of each public error class of the package, without importing the modules."""
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(("mb_metrics", *file.relative_to(SOURCE).with_suffix("").parts))
        for node in ast.parse(file.read_text()).body:
            is_error = isinstance(node, ast.ClassDef) and any(
                ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases
            )
            if is_error and not node.name.startswith("_"):
                yield module, node.name


def test_every_public_error_derives_from_the_base():
    found = {name: getattr(importlib.import_module(module), name) for module, name in error_classes()}
    assert {"LogFormatError", "RunNotFoundError", "SectionError", "UnknownFlopsError"} <= {*found}
    assert [name for name, error in found.items() if not issubclass(error, MetricsError)] == []


def test_errors_are_bad_input_or_failures():
    bad_input = {
        name for module, name in error_classes() if getattr(importlib.import_module(module), name).bad_input
    }
    assert bad_input == {
        "BenchCommandError",
        "BenchRequestError",
        "ComparedArgumentsError",
        "LogFormatError",
        "LoggingLevelError",
        "MetricNotRecordedError",
        "NotebookUnavailableError",
        "ReportPortError",
        "RunFolderNameError",
        "RunNotFoundError",
    }


@pytest.mark.parametrize("missing", ["typer", "yaml"])
def test_without_the_extra_the_program_names_it(missing, tmp_path):
    if missing == "yaml":
        pytest.importorskip("typer", reason="needs mb-metrics[cli]")
        pytest.importorskip("rich", reason="needs mb-metrics[cli]")
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['mb-metrics', 'report', {str(tmp_path)!r}]\n"
        "from mb_metrics.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    advice = (
        f'mb-metrics: needs {missing}, which is not installed. Install it: pip install "mb-metrics[cli]"\n'
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", advice)
