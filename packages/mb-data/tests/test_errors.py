"""Message of the program where its extra is not installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["typer", "yaml"])
def test_without_the_extra_the_program_names_it(missing):
    if missing == "yaml":
        pytest.importorskip("typer", reason="needs mb-data[cli]")
        pytest.importorskip("rich", reason="needs mb-data[cli]")
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['mb-data', 'index']\n"
        "from mb_data.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    advice = f'mb-data: needs {missing}, which is not installed. Install it: pip install "mb-data[cli]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", advice)
