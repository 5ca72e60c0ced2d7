"""Settings of the checkpoint that a load would select."""

from argparse import Namespace

import complete_checkpoint
import pytest
import torch

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.load.stored_settings import find_stored_settings


def test_settings_are_a_file_or_arguments(tmp_path):
    complete_checkpoint.fill(tmp_path / "iter_0000010", 10)
    section = CheckpointConfig(load=str(tmp_path))
    folder = tmp_path / "iter_0000010"
    with pytest.raises(CheckpointNotFoundError, match="holds no settings"):
        find_stored_settings(section)
    torch.save({"args": Namespace(num_layers=2)}, folder / "common.pt")
    assert find_stored_settings(section).arguments == {"num_layers": 2}
    (folder / "run_config.yaml").touch()
    found = find_stored_settings(section)
    assert (found.path, found.run_config, found.arguments) == (folder, folder / "run_config.yaml", None)


def test_without_a_checkpoint_there_are_no_settings(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint to take settings from"):
        find_stored_settings(CheckpointConfig(load=str(tmp_path), save=str(tmp_path)))
