"""Public names of the package, and the imports that it triggers."""

import subprocess
import sys

import pytest

import mb_host


def test_public_names_resolve():
    assert sorted(mb_host.__all__) == mb_host.__all__
    assert all(callable(getattr(mb_host, name)) for name in mb_host.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'isntall'"):
        _ = mb_host.isntall


def test_importing_it_does_not_import_torch():
    script = "import mb_host, sys; mb_host.run_ranks, mb_host.quiet; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
