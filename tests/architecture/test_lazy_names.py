"""Public names without their optional dependencies: `hasattr`, `dir`, imports and star imports behave as in Python."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from house import PACKAGES

BLOCKED = """
import importlib, json, sys
for name in ("torch", "megatron", "transformer_engine", "nvidia_resiliency_ext", "tensorboard", "wandb", "mlflow",
             "comet_ml", "numpy", "xxhash", "transformers"):
    sys.modules[name] = None
answers = {}
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    listed = [name for name in module._HOMES if name not in dir(module)]
    present = [name for name in module._HOMES if hasattr(module, name)]
    star = {}
    exec(f"from {package} import *", star)
    errors = {}
    for name in sorted({*module._HOMES} - {*present}):
        try:
            exec(f"from {package} import {name}")
        except ImportError as error:
            errors[name] = f"{type(error).__name__}: {error}"
    answers[package] = {
        "unlisted": listed, "present": present, "starred": sorted({*star} - {"__builtins__"}), "errors": errors,
    }
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    """Return the public names and import errors of each package in an interpreter without the optional dependencies."""
    command = [sys.executable, "-c", BLOCKED, *(package.module for package in PACKAGES)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_names_behave_without_optional_dependencies(answers, package):
    found = answers[package.module]
    assert found["unlisted"] == []
    assert found["starred"] == sorted(found["present"])
    homes = vars(__import__(package.module))["_HOMES"]
    assert sorted(found["errors"]) == sorted({*homes} - {*found["present"]})
    kinds = {line.partition(":")[0] for line in found["errors"].values()}
    assert kinds <= {"MissingExtraError"}
    assert [name for name in found["errors"] if name.isupper()] == []


@pytest.mark.parametrize("module", [*(package.module for package in PACKAGES), "mb_trainer"])
def test_a_package_has_its_version(module):
    assert __import__(module).__version__ == version(module.replace("_", "-"))


def test_the_error_names_the_extra(answers):
    assert answers["mb_metrics"]["errors"]["report_memory"] == (
        "MissingExtraError: mb_metrics.report_memory: needs torch, which is not installed. "
        'Install it: pip install "mb-metrics[torch]"'
    )
    assert "pip install mb-data" in answers["mb_data"]["errors"]["BatchSampler"]
