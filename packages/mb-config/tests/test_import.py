"""Importing costs little and loads nothing heavy."""

import subprocess
import sys

import pytest

import mb_config

HEAVY = ("torch", "hydra", "omegaconf", "megatron", "numpy")


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


def test_import_is_light():
    code = f"import sys, mb_config; print(*[n for n in {HEAVY} + ('yaml', 'dataclasses_json') if n in sys.modules])"
    assert run(code) == []


def test_every_name_but_overrides_leaves_hydra_and_torch_alone():
    code = f"import sys; from mb_config import *; print(*[n for n in {HEAVY} if n in sys.modules])"
    assert run(code) == []


def test_sections_and_rules_need_only_the_standard_library():
    code = "import sys, mb_config.rules, mb_config.sections.training, mb_config.sections.optimizer; "
    assert run(code + "print(*{'yaml', 'torch', 'dataclasses_json'} & set(sys.modules))") == []


def test_every_public_name_is_there():
    assert [name for name in mb_config.__all__ if getattr(mb_config, name) is None] == []
    assert sorted(mb_config.__all__) == list(mb_config.__all__)


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="nothing"):
        mb_config.nothing  # noqa: B018
