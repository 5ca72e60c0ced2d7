"""Requests of commands that use some sections only."""

import pytest

from mb_config import ConfigError
from mb_config.cli.program import ConfigProgram, read_for_sections


@pytest.fixture
def settings(tmp_path):
    """Return a function that writes a configuration and returns the arguments that read it."""

    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return [str(tmp_path / "run.yaml")]

    return write


INVALID = "scheduler: {start_weight_decay: -1.0}"


def test_problems_of_other_sections_are_ignored(settings):
    arguments = settings(f"train: {{train_iters: 8, global_batch_size: 2, micro_batch_size: 1}}\n{INVALID}")
    request = read_for_sections(ConfigProgram(), arguments, sections=("train",))
    assert request.config.train.train_iters == 8


def test_problems_of_the_used_sections_are_rejected(settings):
    with pytest.raises(ConfigError, match=r"scheduler\.start_weight_decay"):
        read_for_sections(ConfigProgram(), settings(INVALID), sections=("scheduler",))
