"""This folder on the path, for the modules that tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def nemo_run_home(tmp_path_factory):
    """Set the folder of NeMo-Run's experiments, which it reads when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("nemo_run")
        patch.setenv("NEMORUN_HOME", str(folder))
        yield folder
