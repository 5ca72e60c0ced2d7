"""Vision-language models: section, rules, formula, and captions that depend on the image."""

import dataclasses

import pytest
import torch
from megatron.core import tensor_parallel

from mb_host.megatron.layers import host_block_spec
from mb_models.errors import BatchError
from mb_models.gpt.transformer import transformer_config
from mb_models.mimo.captions import caption
from mb_models.mimo.config import MimoModelConfig, module_ranks
from mb_models.mimo.layout_rules import module_layout_error
from mb_models.mimo.provider import MimoForwardStep, MimoModelProvider, ModuleRows
from mb_models.mimo.rules import RULES
from mb_models.parameters import mimo_parameter_count, parameter_count
from mb_models.rules import ModelConfigError

CPU = torch.device("cpu")
TINY = MimoModelConfig(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    ffn_hidden_size=96,
    normalization="RMSNorm",
    gated_linear_unit=True,
    activation_func="silu",
    add_bias_linear=False,
    position_embedding_type="rope",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    seq_length=12,
    vocab_size=32,
    transformer_impl="local",
    vision_num_layers=1,
    vision_hidden_size=32,
    vision_num_attention_heads=4,
    image_size=8,
    patch_size=4,
)


def build(config):
    [model] = MimoModelProvider(config, layer_spec=host_block_spec, device=CPU).provide_chunks()
    return model


def batch(generator, sequences=16):
    """Return images of one grey each, and text that names it: without the image the loss stays at log 8."""
    grey = torch.randint(8, (sequences, 1), generator=generator)
    text = grey.expand(sequences, 8)
    tokens = torch.cat([torch.full((sequences, 4), -200), torch.zeros_like(text)], dim=1)
    loss_mask = torch.zeros(sequences, 12)
    loss_mask[:, 4:] = 1
    return {
        "tokens": tokens,
        "labels": torch.cat([torch.zeros(sequences, 4, dtype=torch.long), text], dim=1),
        "loss_mask": loss_mask,
        "position_ids": torch.arange(12).expand(sequences, 12),
        "images": (grey / 4 - 1)[..., None, None].expand(sequences, 3, 8, 8),
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_failing_example_and_accepts_the_other(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    assert rule.message({}) is None
    own = {path.removeprefix("model.") for path in rule.fields if path.startswith("model.")}
    assert own <= MimoModelConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_num_layers": 0}, r"\[M01\].*vision_num_layers=0"),
        ({"patch_size": 3}, r"\[M02\].*patches of 3 pixels"),
        ({"seq_length": 4}, r"\[M03\].*the 4 of an image"),
        (
            {"tensor_model_parallel_size": 2, "projector_hidden_size": 33},
            r"\[M04\].*projector_hidden_size=33",
        ),
        ({"pipeline_model_parallel_size": 2}, r"\[M05\].*each of them complete"),
        ({"sequence_parallel": True, "tensor_model_parallel_size": 2, "hidden_dropout": 0.1}, r"\[M06\]"),
        ({"context_parallel_size": 2}, r"\[M09\].*is off with context_parallel_size=2"),
        ({"image_token_id": 0}, r"\[M10\]"),
    ],
)
def test_invalid_sections_are_rejected(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        transformer_config(dataclasses.replace(TINY, **changes), device=CPU)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "vision_ffn_hidden_size": 48,
            "projector_hidden_size": 40,
            "share_embeddings_and_output_weights": True,
        },
        {"position_embedding_type": "learned_absolute", "add_bias_linear": True, "patch_size": 8},
    ],
)
def test_the_formula_matches_the_built_model(changes, groups):
    config = dataclasses.replace(TINY, **changes)
    built = sum(parameter.numel() for parameter in build(config).parameters())
    assert mimo_parameter_count(config) == built


def test_the_size_of_siglips_encoder():
    """SigLIP B/16 of Zhai et al. (2023) has 92,884,224 weights, of which 7,087,104 pool the patches."""
    large = {"vision_num_layers": 12, "vision_hidden_size": 768, "vision_num_attention_heads": 12}
    config = dataclasses.replace(TINY, **large, image_size=224, patch_size=16)
    projection = 768 * 64 + 64 + 64 * 64 + 64
    assert mimo_parameter_count(config) - parameter_count(config) - projection == 92_884_224 - 7_087_104


def trained(model, *, steps=40, lr=3e-3):
    optimizer, generator, losses = torch.optim.Adam(model.parameters(), lr=lr), torch.Generator(), []
    for _ in range(steps):
        output, loss_of = MimoForwardStep()(iter([batch(generator)]), model)
        total, number, _ = loss_of(output)
        (total / number).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((total / number).item())
    return losses


@pytest.mark.parametrize("changes", [{}, {"position_embedding_type": "learned_absolute"}])
def test_the_loss_depends_on_the_image(changes, groups):
    torch.manual_seed(2)
    tensor_parallel.model_parallel_cuda_manual_seed(2)
    losses = trained(build(dataclasses.replace(TINY, **changes)))
    assert losses[0] > 3.0
    assert losses[-1] < 1.5  # log 8 is 2.08


def test_captions_describe_the_image(groups):
    torch.manual_seed(2)
    tensor_parallel.model_parallel_cuda_manual_seed(2)
    model = build(TINY)
    trained(model, steps=200)
    model.eval()
    captions = [
        next(caption(model, torch.full((3, 8, 8), grey / 4 - 1), config=TINY, vocab_size=32))
        for grey in range(8)
    ]
    assert sum(word == grey for grey, word in enumerate(captions)) >= 5  # of 8; chance would get one


def test_a_caption_ends_at_the_stop_token_or_the_sequence_length(groups):
    model = build(TINY).eval()
    image = torch.zeros(3, 8, 8)
    whole = list(caption(model, image, config=TINY, vocab_size=32))
    assert len(whole) == TINY.seq_length - TINY.image_tokens
    assert list(caption(model, image, config=TINY, vocab_size=32, stop_token=whole[0])) == []


def test_every_patch_attends_to_every_other(groups):
    model = build(TINY)
    encoder = model.modality_submodules["vision"].encoders["patches"]
    images = torch.rand(1, 3, 8, 8).repeat(2, 1, 1, 1)
    images[1, :, 4:, 4:] = 0.0  # the last patch
    one, other = encoder(images)
    assert one.shape == (4, 32)
    assert ((one - other).abs().amax(1) > 1e-4).all()


def test_indivisible_rows_are_rejected(groups):
    step = MimoForwardStep(rows=ModuleRows(text=(1, 3), images=None))
    with pytest.raises(BatchError, match="16 rows are not divisible by 3"):
        step(iter([batch(torch.Generator())]), torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("offset", "vision_tp", "tp", "world", "problem"),
    [
        (0, 1, 1, 1, None),
        (2, 1, 2, 4, None),
        (-1, 1, 1, 2, "is -1 with"),
        (2, 1, 1, 2, "is 2 of 2 processes"),
        (3, 2, 1, 4, "leaves the encoder 3 ranks, which 2"),
        (2, 1, 2, 3, "leaves the language model 1 ranks, which 2"),
        (2, 1, 1, 5, "2 replicas of the encoder and 3 of the language model"),
    ],
)
def test_valid_ranks_of_modules(offset, vision_tp, tp, world, problem):
    problem_found = module_layout_error(offset, vision_tp, tp, world)
    assert (problem_found is None) is (problem is None)
    assert problem is None or problem in problem_found
    config = dataclasses.replace(
        TINY,
        language_rank_offset=offset,
        vision_tensor_model_parallel_size=vision_tp,
        tensor_model_parallel_size=tp,
    )
    vision, language = module_ranks(config, world_size=world)
    assert problem is not None or {*vision.ranks, *language.ranks} == {*range(world)}


@pytest.mark.parametrize(
    ("iterator", "message"), [(None, "no data iterator"), (iter([{"tokens": 0}]), "lacks labels, .*images")]
)
def test_a_batch_without_images_is_rejected(iterator, message, groups):
    with pytest.raises(BatchError, match=message):
        MimoForwardStep()(iterator, torch.nn.Linear(1, 1))
