import subprocess
import sys

import pytest

import mb_resilience


def test_import_loads_no_torch_and_every_name_resolves():
    code = "import sys, mb_resilience as m; [getattr(m, n) for n in m._HOMES]; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mb_resilience' has no attribute 'nothing'"):
        _ = mb_resilience.nothing
