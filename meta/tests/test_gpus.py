"""`mb check` on a machine with GPUs: it prints them and checks for them."""

import os
import stat
import sys

import pytest

from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_launch.hardware.gpus import DRIVER
from mb_trainer.commands.checks import check
from mb_trainer.run.preflight import target_facts

LINES = [f"NVIDIA H200, GPU-{index}abc, 00000000:{index}7:00.0, 143771, 580.159.03" for index in range(4)]
"""Output of nvidia-smi for four GPUs."""


@pytest.mark.skipif(any(DRIVER.glob("*")), reason="this machine has GPUs")
def test_a_check_names_the_gpus_that_nvidia_smi_lists(tmp_path, monkeypatch, capsys):
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(f"#!{sys.executable}\nprint({chr(10).join(LINES)!r})\n")
    nvidia_smi.chmod(nvidia_smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    target = TargetMachine(world_size=1)
    given = CommandInput(arguments=["gpt_tiny"], out=tmp_path / "run")
    check(given, target=target, as_json=False)
    notes = capsys.readouterr().err
    assert target_facts(target)["gpu"] == "h200"
    assert "this machine: 4 x NVIDIA H200, 140.4 GiB each, driver 580.159.03" in notes
