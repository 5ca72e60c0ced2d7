"""Message of the program where its extra is not installed."""

import subprocess
import sys

import pytest


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
