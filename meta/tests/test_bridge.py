"""Names of Megatron-Bridge."""

import subprocess
import sys
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

import mb_host

mb_host.install()  # before megatron is imported

from mb_models import GPTModelConfig  # noqa: E402
from mb_trainer.bridge._names import NAMES  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402

SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 16}


@pytest.mark.parametrize("path", NAMES)
def test_every_name_exists(path):
    module = import_module(f"mb_trainer.bridge.{path}")
    assert dir(module) == sorted(NAMES[path])
    assert [name for name in NAMES[path] if getattr(module, name) is None] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"training.config' has no attribute 'Nothing'"):
        import_module("mb_trainer.bridge.training.config").Nothing  # noqa: B018


def test_a_recipe_loads_without_torch():
    code = (
        "import sys; from mb_trainer.bridge.models import GPTModelProvider; "
        "from mb_trainer.bridge.training.config import ConfigContainer; "
        "from mb_trainer.bridge.training.gpt_step import forward_step; "
        "from mb_trainer.bridge.training.pretrain import pretrain; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_values_of_torch_are_names_in_a_provider():
    provider = GPTModelProvider(**SIZES, activation_func=F.silu, pipeline_dtype=torch.bfloat16)
    provider.params_dtype = torch.float32
    values = (provider.activation_func, provider.pipeline_dtype, provider.params_dtype)
    assert values == ("silu", "bfloat16", "float32")
    assert isinstance(provider, GPTModelConfig)
    with pytest.raises(AttributeError, match="hidden_sizes: GPTModelProvider has no such field"):
        provider.hidden_sizes = 3
