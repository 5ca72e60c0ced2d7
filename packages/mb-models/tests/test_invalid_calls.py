"""Calls that providers and forward steps reject before they build or read anything."""

import pytest
import torch

import mb_host

mb_host.install()  # before megatron is imported

from mb_host.megatron.hybrid import host_hybrid_spec  # noqa: E402
from mb_host.megatron.layers import host_block_spec  # noqa: E402
from mb_host.megatron.t5 import host_t5_spec  # noqa: E402
from mb_models import GPTModelConfig, GPTModelProvider  # noqa: E402
from mb_models.hybrid.config import MambaModelConfig  # noqa: E402
from mb_models.hybrid.provider import MambaForwardStep, MambaModelProvider  # noqa: E402
from mb_models.mimo.config import MimoModelConfig  # noqa: E402
from mb_models.mimo.provider import MimoForwardStep, MimoModelProvider  # noqa: E402
from mb_models.t5.config import T5ModelConfig  # noqa: E402
from mb_models.t5.provider import T5ForwardStep, T5ModelProvider  # noqa: E402
from mb_schema.value_types import FieldTypeError  # noqa: E402

SHAPE = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 32}
FAMILIES = {
    "GPT": (GPTModelConfig, GPTModelProvider, host_block_spec),
    "hybrid": (MambaModelConfig, MambaModelProvider, host_hybrid_spec),
    "T5": (T5ModelConfig, T5ModelProvider, host_t5_spec),
    "MIMO": (MimoModelConfig, MimoModelProvider, host_block_spec),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_layers", "2", "model.num_layers: expected int, not '2'"),
        ("hidden_size", 32.5, "model.hidden_size: expected int, not 32.5"),
        ("hidden_dropout", "none", "model.hidden_dropout: expected float, not 'none'"),
        ("bf16", "yes", "model.bf16: expected bool, not 'yes'"),
        ("transformer", ["use_mup"], "model.transformer: expected"),
    ],
)
def test_a_value_of_a_wrong_type_is_reported_with_its_field(family, field, value, message):
    section, provider, layers = FAMILIES[family]
    pattern = {"hybrid_layer_pattern": "M*"} if family == "hybrid" else {}
    config = section(**SHAPE, **pattern)
    setattr(config, field, value)
    with pytest.raises(FieldTypeError) as caught:
        provider(config, layer_spec=layers, device=torch.device("cpu"))
    assert str(caught.value).startswith(message)


class Chunk(torch.nn.Module):
    """Chunk of a model without a schedule plan."""

    pre_process = True


@pytest.mark.parametrize(
    ("step", "model"),
    [
        (T5ForwardStep(), "a T5"),
        (MimoForwardStep(), "a vision-language model"),
        (MambaForwardStep(), "a hybrid"),
    ],
)
def test_only_a_gpt_has_a_schedule_plan(step, model):
    batches = iter([{}])
    with pytest.raises(ValueError, match=f"^return_schedule_plan: {model} has no schedule plan"):
        step(batches, Chunk(), return_schedule_plan=True)
    assert next(batches) == {}  # nothing was read
