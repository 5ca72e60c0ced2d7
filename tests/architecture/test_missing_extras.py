"""The program of a package without its extra `cli` names the command that installs it."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from house import PACKAGES

PROGRAMS = [
    package for package in PACKAGES if entry_points(group="console_scripts", name=package.distribution)
]
LATER_IMPORTS = {
    "mb_checkpoint": ["verify", "rich"],
    "mb_data": ["index", "yaml"],
    "mb_metrics": ["report", "yaml"],
}
"""Package -> command, and the module that it imports after typer."""


@pytest.mark.parametrize(
    ("package", "command", "missing"),
    [
        *((package, "--help", "typer") for package in PROGRAMS),
        *(
            (package, *LATER_IMPORTS[package.module])
            for package in PROGRAMS
            if package.module in LATER_IMPORTS
        ),
    ],
    ids=lambda value: getattr(value, "module", value),
)
def test_without_the_extra_the_program_names_it(package, command, missing, tmp_path):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['', {command!r}, {str(tmp_path)!r}]\n"
        f"from {package.module}.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    name = package.distribution
    advice = f'{name}: needs {missing}, which is not installed. Install it: pip install "{name}[cli]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", advice)
