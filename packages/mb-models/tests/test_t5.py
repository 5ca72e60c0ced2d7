"""T5: section, rules, masks, and a decoder that depends on the encoder."""

import dataclasses
from importlib.util import find_spec

import pytest
import torch

from mb_host.megatron.t5 import host_t5_spec
from mb_models.errors import BatchError
from mb_models.parameters import t5_parameter_count
from mb_models.peft.config import TARGETS, LoRA
from mb_models.rules import ModelConfigError
from mb_models.t5.config import T5ModelConfig
from mb_models.t5.provider import (
    T5ForwardStep,
    T5ModelProvider,
    attention_masks,
    kernel_masks,
    t5_transformer_config,
    t5_transformer_engine_spec,
)
from mb_models.t5.rules import RULES

CPU = torch.device("cpu")
TINY = T5ModelConfig(
    num_layers=2,
    encoder_num_layers=1,
    hidden_size=64,
    num_attention_heads=4,
    ffn_hidden_size=96,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    seq_length=12,
    decoder_seq_length=8,
    vocab_size=32,
    transformer_impl="local",
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_failing_example_and_accepts_the_other(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    names = {path.removeprefix("model.") for path in rule.fields if path.startswith("model.")}
    assert names <= T5ModelConfig.__dataclass_fields__.keys()


def test_pipeline_stages_are_rejected():
    config = dataclasses.replace(TINY, pipeline_model_parallel_size=2)
    with pytest.raises(ModelConfigError, match=r"\[TF02\].*would hang"):
        t5_transformer_config(config, device=CPU)


def batch(generator, pairs=16):
    """Return pairs whose single symbol only the encoder reads: without cross-attention the loss stays at log 32."""
    symbols = torch.randint(32, (pairs, 1), generator=generator)
    return {
        "text_enc": symbols.expand(pairs, 12),
        "enc_mask": torch.ones(pairs, 12),
        "text_dec": torch.zeros(pairs, 8, dtype=torch.long),
        "labels": symbols.expand(pairs, 8),
        "loss_mask": torch.ones(pairs, 8),
    }


def test_masks_hide_padding_and_the_future():
    pair = batch(torch.Generator(), pairs=1) | {"enc_mask": torch.tensor([[1] * 10 + [0] * 2])}
    encoder, decoder, across = attention_masks(pair)
    assert [encoder.shape, decoder.shape, across.shape] == [(1, 1, 12, 12), (1, 1, 8, 8), (1, 1, 8, 12)]
    assert across[0, 0, 3].tolist() == [False] * 10 + [True] * 2
    assert decoder[0, 0, 2].tolist() == [False] * 3 + [True] * 5


def test_masks_for_transformer_engine_hide_the_same():
    pair = batch(torch.Generator(), pairs=1) | {"enc_mask": torch.tensor([[1] * 10 + [0] * 2])}
    encoder, decoder, (queries, keys) = kernel_masks(pair)
    assert [encoder.shape, decoder, queries.shape] == [(1, 1, 1, 12), None, (1, 1, 1, 8)]
    for whole, parts in zip(attention_masks(pair)[::2], (encoder, queries.mT | keys), strict=True):
        assert torch.equal(whole, parts.expand_as(whole))


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="Transformer Engine is installed")
def test_layers_of_transformer_engine_require_it():
    with pytest.raises(ModuleNotFoundError, match="Install mb-models"):
        t5_transformer_engine_spec(t5_transformer_config(TINY, device=CPU))


SIZES = [
    {},
    {"encoder_num_layers": None, "position_embedding_type": "rope", "normalization": "RMSNorm"},
    {"share_embeddings_and_output_weights": False, "max_position_embeddings": 40},
    {"add_bias_linear": False, "add_qkv_bias": True, "gated_linear_unit": True, "kv_channels": 20},
]


@pytest.mark.parametrize("changes", SIZES)
def test_the_formula_matches_the_built_model(changes, groups):
    config = dataclasses.replace(TINY, **changes)
    [model] = T5ModelProvider(config, layer_spec=host_t5_spec, device=CPU).provide_chunks(groups)
    assert t5_parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())


def test_counting_requires_a_vocabulary():
    with pytest.raises(ValueError, match="vocab_size: not set"):
        t5_parameter_count(dataclasses.replace(TINY, vocab_size=None))


@pytest.mark.parametrize("changes", [{}, {"position_embedding_type": "rope", "normalization": "RMSNorm"}])
def test_the_decoder_uses_the_encoders_output(changes, groups):
    provider = T5ModelProvider(dataclasses.replace(TINY, **changes), layer_spec=host_t5_spec, device=CPU)
    [model] = provider.provide_chunks(groups)
    assert [len(model.encoder.layers), len(model.decoder.layers)] == [1, 2]
    optimizer, generator, losses = torch.optim.Adam(model.parameters(), lr=3e-3), torch.Generator(), []
    for _ in range(40):
        output, loss_of = T5ForwardStep()(iter([batch(generator)]), model)
        total, number, _ = loss_of(output)
        (total / number).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((total / number).item())
    assert losses[0] > 3.0
    assert losses[-1] < 2.0


def test_padding_does_not_change_the_output(groups):
    [model] = T5ModelProvider(TINY, layer_spec=host_t5_spec, device=CPU).provide_chunks(groups)
    pair = batch(torch.Generator(), pairs=2) | {"enc_mask": torch.tensor([[1] * 9 + [0] * 3] * 2)}
    other = pair | {"text_enc": torch.cat([pair["text_enc"][:, :9], torch.full((2, 3), 7)], dim=1)}
    one, two = (T5ForwardStep()(iter([each]), model)[0] for each in (pair, other))
    torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("targets", "across"),
    [
        (TARGETS, ["linear_proj"]),
        ((*TARGETS, "linear_q", "linear_kv"), ["linear_kv", "linear_proj", "linear_q"]),
    ],
    ids=["by default", "by name"],
)
def test_adapters_of_cross_attention_are_selected_by_name(targets, across, groups):
    [model] = T5ModelProvider(TINY, layer_spec=host_t5_spec, device=CPU).provide_chunks(groups)
    LoRA(dim=2, target_modules=[*targets]).install([model])
    layer = model.decoder.layers[0].cross_attention
    assert sorted(name.split(".")[0] for name, _ in layer.named_parameters() if "lora_b" in name) == across
    output, loss_of = T5ForwardStep()(iter([batch(torch.Generator())]), model)
    loss_of(output)[0].backward()
    assert all(value.grad is not None for value in model.parameters() if value.requires_grad)


@pytest.mark.parametrize(
    ("iterator", "message"), [(None, "no data iterator"), (iter([{}]), "lacks text_enc")]
)
def test_a_batch_without_pairs_is_rejected(iterator, message, groups):
    with pytest.raises(BatchError, match=message):
        T5ForwardStep()(iterator, torch.nn.Linear(1, 1))
