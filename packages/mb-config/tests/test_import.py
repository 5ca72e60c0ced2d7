"""Import time: importing the package loads no heavy dependency."""

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


def test_public_names_except_those_of_megatron_import_neither_hydra_nor_torch():
    code = (
        "import sys, mb_config\n"
        "for name, home in mb_config._HOMES.items():\n"
        "    if home != 'mb_config.mcore': getattr(mb_config, name)\n"
        f"print(*[n for n in {HEAVY} if n in sys.modules])"
    )
    assert run(code) == []


def test_sections_and_rules_need_only_the_standard_library():
    code = "import sys, mb_config.rules, mb_config.sections.training, mb_config.sections.optimizer; "
    assert run(code + "print(*{'yaml', 'torch', 'dataclasses_json'} & set(sys.modules))") == []


def test_every_public_name_exists():
    assert [name for name in mb_config.__all__ if getattr(mb_config, name) is None] == []
    assert sorted(mb_config.__all__) == list(mb_config.__all__)


def test_unknown_names_do_not_exist():
    with pytest.raises(AttributeError, match="nothing"):
        mb_config.nothing  # noqa: B018
