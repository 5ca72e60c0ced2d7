import subprocess
import sys

import pytest

import mb_loop


def test_import_does_not_import_torch():
    code = (
        "import sys, mb_loop; mb_loop.TrainState(); mb_loop.LoopState; mb_loop.ReplicaMismatchError;"
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mb_loop' has no attribute 'nothing'"):
        _ = mb_loop.nothing


def test_every_name_resolves():
    pytest.importorskip("torch")
    names = [name for name in mb_loop.__all__ if name != "RULES"]
    assert [name for name in names if getattr(mb_loop, name).__name__ != name] == []
