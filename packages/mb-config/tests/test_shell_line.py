"""Overrides as a shell passes them: messages contain the corrected command line."""

import re
import shlex
import subprocess
import sys

import pytest

from mb_config import DistributedDataParallelConfig, OverrideError, TrainingConfig, apply_overrides
from mb_config.overrides.apply import reject_spaced
from mb_config.overrides.shell_line import without_dashes


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("train_iters = 3", "train_iters=3"),
        ("train_iters =3", "train_iters=3"),
        ("train_iters= 3", "train_iters=3"),
        ("train.train_iters: 3", "train.train_iters=3"),
        ("gpt_tiny a = 'x y' b=1", "gpt_tiny 'a=x y' b=1"),
    ],
)
def test_the_message_for_an_override_with_spaces_has_the_corrected_line(typed, line):
    with pytest.raises(OverrideError, match=rf"Write {re.escape(line)}$"):
        reject_spaced(shlex.split(typed))


@pytest.mark.parametrize("typed", ["gpt_tiny", "a=1 b=2", "a= b=2", "a= ~b", "a=x=y", "~a.b +c=1", ""])
def test_other_arguments_are_accepted(typed):
    reject_spaced(shlex.split(typed))


def test_spaces_are_reported_before_anything_is_applied():
    train = TrainingConfig(train_iters=1)
    with pytest.raises(OverrideError, match="Write train_iters=3"):
        apply_overrides(train, ["train_iters", "=", "3"])
    assert train.train_iters == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["check", "--opt.lr=1"], "check opt.lr=1"),
        (["check", "--train.train_iters", "3", "--json"], "check train.train_iters=3 --json"),
        (["check", "--out", "a.b", "x.y=1"], None),
        (["check", "--te", "2.20"], None),
    ],
)
def test_the_message_for_an_override_with_dashes_has_the_corrected_line(words, line):
    assert without_dashes(words) == line


def test_the_command_line_reports_it(tmp_path):
    pytest.importorskip("typer", reason="needs mb-config[cli]")
    file = tmp_path / "run.yaml"
    file.write_text("train: {train_iters: 3}\n")
    command = [sys.executable, "-m", "mb_config", "check", str(file), "--optimizer.lr=1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"Write mb-config check {file} optimizer.lr=1" in result.stderr


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("größe,klein", "'data_parallel_sharding_strategy=\"größe,klein\"'"),
        ("100,0,0", "'data_parallel_sharding_strategy=\"100,0,0\"'"),
    ],
)
def test_the_message_for_a_value_that_needs_quotes_has_the_corrected_line(value, line):
    ddp = DistributedDataParallelConfig()
    with pytest.raises(OverrideError, match=re.escape(line)):
        apply_overrides(ddp, [f"data_parallel_sharding_strategy={value}"])
    apply_overrides(ddp, shlex.split(line))
    assert ddp.data_parallel_sharding_strategy == value


def test_letters_outside_ascii_need_no_quotes():
    ddp = DistributedDataParallelConfig()
    apply_overrides(ddp, ["data_parallel_sharding_strategy=/tmp/größe"])
    assert ddp.data_parallel_sharding_strategy == "/tmp/größe"


def test_a_home_directory_is_expanded_by_the_shell():
    with pytest.raises(OverrideError, match=r'Write data_parallel_sharding_strategy="\$HOME/ck"$'):
        apply_overrides(DistributedDataParallelConfig(), ["data_parallel_sharding_strategy=~/ck"])


def test_an_override_without_a_name_is_rejected():
    with pytest.raises(OverrideError, match="names no field"):
        apply_overrides(TrainingConfig(), ["=3"])
