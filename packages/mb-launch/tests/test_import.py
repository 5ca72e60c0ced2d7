"""Importing costs little and loads nothing heavy."""

import subprocess
import sys

import pytest

import mb_launch

CODE = """
import sys, mb_launch
mb_launch.read_world({}), mb_launch.Failure, mb_launch.RULES, mb_launch.violated_constraints, mb_launch.read_gpus
print(sorted({"torch", "numpy", "psutil", "megatron", "pydantic"} & {*sys.modules}))
"""


def test_import_loads_no_dependency():
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True) == "[]\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mb_launch' has no attribute 'nothing'"):
        _ = mb_launch.nothing


def test_every_name_resolves():
    pytest.importorskip("torch")
    pytest.importorskip("psutil")
    names = [name for name in mb_launch.__all__ if name != "RULES"]
    assert [name for name in names if getattr(mb_launch, name).__name__ != name] == []
    assert len(names) > 40
