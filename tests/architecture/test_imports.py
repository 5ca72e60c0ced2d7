"""Doors and budgets, measured in fresh interpreters: what `import mb_x` loads, and how long it takes."""

import json
import subprocess
import sys

import pytest
from house import DOORS, PACKAGES, Package

PROBE = """
import json, sys, time
started = time.perf_counter()
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def import_in_a_fresh_interpreter(*modules: str) -> dict:
    """Import modules in a new process and return the seconds it took and the top-level modules it loaded."""
    command = [sys.executable, "-c", PROBE, *modules]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_import_loads_no_door_and_no_torch(package: Package):
    loaded = set(import_in_a_fresh_interpreter(package.module)["modules"])
    assert loaded & (DOORS | {"torch", "numpy", "hydra", "omegaconf"}) == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_sections_and_rules_load_without_torch(package: Package):
    parts = [f"{package.module}.{name}" for name in ("config", "rules") if has_part(package, name)]
    loaded = set(import_in_a_fresh_interpreter(package.module, *parts)["modules"])
    assert loaded & (DOORS | {"torch", "numpy"}) == set()


def has_part(package: Package, name: str) -> bool:
    """Return whether a package has a module or a folder of that name."""
    return (package.source / f"{name}.py").exists() or (package.source / name).is_dir()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_import_stays_within_its_budget(package: Package):
    best = min(import_in_a_fresh_interpreter(package.module)["seconds"] for _ in range(5))
    assert best < package.import_budget_seconds


def test_the_probe_sees_a_heavy_import():
    assert "torch" in import_in_a_fresh_interpreter("torch")["modules"]
