"""The arguments of Megatron-LM are read from a checkpoint without executing what it names."""

import os
from argparse import Namespace

import torch

from mb_checkpoint.formats.stored_arguments import read_arguments, read_common_state


class Code:
    """Object whose unpickling would execute a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_arguments_are_read_and_code_is_not_executed(tmp_path):
    harmful = Code(f"touch {tmp_path / 'executed'}")
    arguments = Namespace(num_layers=2, spec=None, attention_backend=harmful, cp_comm_type=["p2p"], kind=Code)
    state = {"iteration": 5, "args": arguments, "weights": torch.ones(3), "list": [harmful]}
    torch.save(state, tmp_path / "common.pt")
    assert read_arguments(tmp_path) == {"num_layers": 2, "cp_comm_type": ["p2p"]}
    assert read_common_state(tmp_path)["list"] == [None]
    assert not (tmp_path / "executed").exists()


def test_a_folder_without_such_a_state_has_no_arguments(tmp_path):
    assert read_arguments(tmp_path) is None
    torch.save([1], tmp_path / "common.pt")
    assert read_common_state(tmp_path) == {}
