"""Checks of Megatron's configuration objects, on a stand-in of the class."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from mb_guard import KnownFaultError
from mb_guard.config_checks import ConfigCheck
from mb_guard.fault import Fault

CONFIG = "megatron.core.transformer.transformer_config"


def record(action):
    return Fault(
        id="split-sequences",
        effect="wrong number",
        summary="Sequences are split.",
        shows="Silent.",
        versions={"megatron-core": ">=0.19.0"},
        action=action,
        test="none",
        met=lambda settings: (settings.context_parallel_size or 1) > 1,
        advice="Set context_parallel_size=1.",
    )


def config_class(check):
    """Return a stand-in of TransformerConfig that the check watches."""

    @dataclass
    class TransformerConfig:
        context_parallel_size: int = 1

        def __post_init__(self):
            self.completed = True

    module = ModuleType(CONFIG)
    module.TransformerConfig = TransformerConfig
    check.watch(module)
    return TransformerConfig


def test_a_fault_without_a_correction_is_refused():
    config = config_class(ConfigCheck([record("refuse")], refuse=True, report=print))
    assert config().completed
    with pytest.raises(KnownFaultError) as refused:
        config(context_parallel_size=2)
    assert str(refused.value) == (
        "split-sequences: Sequences are split. Set context_parallel_size=1. "
        "MB_GUARD=-split-sequences runs it all the same."
    )


@pytest.mark.parametrize("action", ["warn", "refuse"])
def test_a_fault_is_reported_once(action):
    lines = []
    config = config_class(ConfigCheck([record(action)], refuse=False, report=lines.append))
    config(context_parallel_size=2)
    config(context_parallel_size=2)
    assert lines == ["mb_guard: split-sequences: Sequences are split. Set context_parallel_size=1."]


def test_megatrons_own_classes_are_watched():
    pytest.importorskip("megatron.core")
    pytest.importorskip("mb_host")
    import subprocess

    script = (
        "import mb_host; mb_host.install()\n"
        "from mb_guard.config_checks import CONFIG_CLASSES, ConfigCheck\n"
        "from importlib import import_module\n"
        "check = ConfigCheck([], refuse=True, report=print)\n"
        "for name in CONFIG_CLASSES: check.watch(import_module(name))\n"
        "from megatron.core.transformer.transformer_config import MLATransformerConfig\n"
        "MLATransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, kv_lora_rank=77)\n"
        "print(check.latest['TransformerConfig']['kv_lora_rank'])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["77"], done.stderr
