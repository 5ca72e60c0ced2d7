"""Names of Transformer Engine, with small stand-ins of both packages; Megatron's part is its installed source."""

import subprocess
import sys
from pathlib import Path

import pytest

from mb_guard.sources import defines, module_file

EXTENSIONS = "megatron.core.extensions.transformer_engine"
IMPORT = "try:\n    from transformer_engine.pytorch.attention import _SplitAlongDim"
ATTENTION = f"""
HAVE_TE = True
from {EXTENSIONS} import SplitAlongDim
"""
NEW_NAME = "class SplitAlongDim:\n    apply = 'the new one'\n"
OLD_NAME = "class _SplitAlongDim:\n    apply = 'the old one'\n"


def write(folder, module, text=""):
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.parent.relative_to(folder).parents[:-1]:
        (folder / parent / "__init__.py").touch()
    (path.parent / "__init__.py").touch()
    path.write_text(text)


def metadata(folder, name, version):
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


@pytest.fixture
def both(tmp_path):
    """Return a function that writes both packages and returns what attention splits with, and the fault's state."""
    installed = module_file(EXTENSIONS)
    if installed is None:
        pytest.skip("needs megatron-core")
    source = installed.read_text()
    start = source.index(IMPORT)
    megatrons_own = source[start : source.index("SplitAlongDim = None", start)] + "SplitAlongDim = None\n"
    write(tmp_path, EXTENSIONS, f"HAVE_TE = True\n{megatrons_own}")
    write(tmp_path, "megatron.core.transformer.attention", ATTENTION)
    metadata(tmp_path, "megatron_core", "0.19.2")

    def result(utils="", attention="", first="import mb_guard; mb_guard.install(quiet=True)", then=""):
        write(tmp_path, "transformer_engine.pytorch.utils", utils)
        write(tmp_path, "transformer_engine.pytorch.attention", attention)
        metadata(tmp_path, "transformer_engine", "2.20.2")
        script = (
            f"{first}\nfrom megatron.core.transformer import attention\n{then}\nimport mb_guard\n"
            "states = {each.fault.id: each.state for each in mb_guard.status().statuses}\n"
            "print(attention.SplitAlongDim, '|', states['split-along-dim'])"
        )
        path = f"{tmp_path}:{Path(sys.modules['mb_guard'].__file__).parents[1]}"
        environment = {"PYTHONPATH": path, "PATH": "", "MB_GUARD": "split-along-dim"}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
        )
        return done.stdout.strip()

    return result


def test_the_split_is_found_under_its_new_name(both):
    assert both(utils=NEW_NAME) == "the new one | put right"


def test_without_the_guard_it_is_lost(both):
    assert both(utils=NEW_NAME, first="").startswith("None")


def test_it_is_found_after_megatron_was_imported(both):
    after = "import mb_guard; mb_guard.install(quiet=True)"
    assert both(utils=NEW_NAME, first="", then=after) == "the new one | put right"


def test_nothing_is_changed_where_the_import_works(both):
    assert both(utils=NEW_NAME, attention=OLD_NAME) == "the old one | not needed"


def test_nothing_is_changed_where_both_names_are_missing(both):
    assert both() == "None | not needed"


def test_defined_names_are_found_without_an_import(tmp_path, monkeypatch):
    write(tmp_path, "hidden_lake.deep", "def swim():\n    pass\nDEPTH: int = 3\n")
    write(tmp_path, "hidden_lake.shore", "from .deep import *\nfrom os import (\n    path,\n)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["swim", "DEPTH", "path", "fish"]
    assert [defines("hidden_lake.shore", name) for name in names] == [True, True, True, False]
    assert defines("hidden_lake", "deep")
    assert not defines("hidden_lake.bottom", "swim")


def test_modules_that_import_each_other_end_the_search(tmp_path, monkeypatch):
    write(tmp_path, "round_lake.east", "from .west import *\n")
    write(tmp_path, "round_lake.west", "from .east import *\nBOAT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [defines("round_lake.east", name) for name in ("BOAT", "fish")] == [True, False]
