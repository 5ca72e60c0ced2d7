"""Settings from command lines, scripts and YAML files."""

import pytest

from mb_guard.errors import UnreadableSettingsError
from mb_guard.fault import Settings
from mb_guard.settings_reader import read_settings

SCRIPT = """#!/bin/bash
# a comment with --tensor-model-parallel-size 8
TP=${TP:-2}
MODEL_ARGS=(
    --num-layers 2 --num-experts 8
    --tensor-model-parallel-size $TP
)
OPTIMIZER="--lr 3e-4 --use-distributed-optimizer"
torchrun --nproc-per-node $GPUS pretrain_gpt.py ${MODEL_ARGS[@]} $OPTIMIZER \\
    --context-parallel-size=4 --no-rope-fusion
"""
WANTED = {
    "num_layers": 2,
    "num_moe_experts": 8,
    "tensor_model_parallel_size": 2,
    "lr": 3e-4,
    "use_distributed_optimizer": True,
    "nproc_per_node": None,
    "context_parallel_size": 4,
    "rope_fusion": False,
}


def test_a_script_is_read_with_its_variables(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    settings = read_settings([str(script)])
    assert {name: settings[name] for name in WANTED} == WANTED


def test_flags_are_read():
    settings = read_settings(["--bf16", "--num-experts", "4", "--moe-router-load-balancing-type", "aux_loss"])
    assert dict(settings) == {
        "bf16": True,
        "num_moe_experts": 4,
        "moe_router_load_balancing_type": "aux_loss",
    }


def test_a_yaml_file_is_read_by_field(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  num_moe_experts: 4\ndataset:\n  reset_position_ids: true\n")
    assert dict(read_settings([str(file)])) == {"num_moe_experts": 4, "reset_position_ids": True}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.sh", None, "cannot be read .* Name a script, a YAML file or flags"),
        ("open.sh", "A='--x", "not a shell script .* Correct the quotes"),
        ("broken.yaml", "a: [1", "not YAML .* Correct the file"),
        ("number.yaml", "a: !!int x", "not YAML .* Correct the file"),
    ],
)
def test_a_file_that_cannot_be_read_is_rejected(tmp_path, name, text, message):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(UnreadableSettingsError, match=message):
        read_settings([str(file)])


def test_yaml_without_pyyaml_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    file = tmp_path / "run.yaml"
    file.write_text("a: 1")
    with pytest.raises(UnreadableSettingsError, match=r'needs pyyaml.*pip install "mb-guard\[cli\]"'):
        read_settings([str(file)])


def test_a_setting_that_is_not_set_is_none():
    assert Settings({}).context_parallel_size is None
    with pytest.raises(AttributeError):
        _ = Settings({})._private
    with pytest.raises(KeyError):
        _ = Settings({})["context_parallel_size"]
