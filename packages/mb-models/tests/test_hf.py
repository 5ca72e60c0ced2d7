"""Models in the Hugging Face format: created by transformers, loaded, compared, exported."""

import dataclasses
import json

import pytest
import torch
from hf_models import EXPORTED, KINDS, make, make_multimodal
from hf_ranks import SMALL, TOKENS, build, losses_on_this_rank, on_this_rank, same, scores_on_this_rank
from megatron.core import dist_checkpointing
from safetensors.torch import load_file, save_file

from mb_host.megatron.layers import host_block_spec
from mb_models import MimoModelConfig, T5ModelConfig, parameter_count
from mb_models.errors import HuggingFaceError
from mb_models.hf.carried import GENERATION, carry_files, read_template, stop_tokens
from mb_models.hf.config_json import (
    LLAMA3_SCALING,
    REQUIRED,
    config_of,
    read_config,
    section_of,
    unequal_parts,
)
from mb_models.hf.conversion import (
    memory_map_parameters,
    memory_mapped_model,
    require_convertible,
    section_of_folder,
)
from mb_models.hf.export import export_model
from mb_models.hf.export_plan import stored_tensors
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import TensorOrigin
from mb_models.hf.load import load_hf_weights, parameter_origins
from mb_models.hf.safetensors_files import TensorFolder
from mb_models.hf.save import save_hf_model
from mb_models.hf.stacked_experts import read_expert, stacked_tensors
from mb_models.hf.weight_tables import origin_of, output_tensor

transformers = pytest.importorskip("transformers")


def imported(folder, groups, dtype="float32"):
    section = section_of(read_config(folder), dtype=dtype)
    section.transformer_impl = "local"
    chunk = build(section, groups)
    load_hf_weights([chunk], folder, pg_collection=groups)
    return section, chunk


def test_the_groups_are_those_of_the_chunks_unless_others_are_passed(tmp_path, groups):
    make("llama", tmp_path / "in")
    section, chunk = imported(tmp_path / "in", groups)
    again = build(section, groups)
    load_hf_weights([again], tmp_path / "in")
    assert all(torch.equal(a, b) for a, b in zip(chunk.parameters(), again.parameters(), strict=True))
    save_hf_model(again, tmp_path / "out", config=section)
    assert weights(tmp_path / "out").keys() == weights(tmp_path / "in").keys()


def test_chunks_without_groups_require_the_argument(tmp_path):
    with pytest.raises(HuggingFaceError, match="pg_collection: not set, and Linear keeps none"):
        load_hf_weights([torch.nn.Linear(1, 1)], tmp_path)


def weights(folder):
    """Return all tensors of a folder by name."""
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("kind", [*KINDS, *EXPORTED])
def test_logits_equal_those_of_transformers_and_the_round_trip_is_exact(kind, groups, tmp_path):
    model = make(kind, tmp_path / "in")
    section, chunk = imported(tmp_path / "in", groups)
    positions = torch.arange(20).expand(2, -1)
    with torch.no_grad():
        ours, theirs = chunk(TOKENS, positions, None), model(TOKENS).logits
    assert (ours - theirs).abs().max() < 1e-5
    model_type = read_config(tmp_path / "in")["model_type"]
    save_hf_model(
        chunk,
        tmp_path / "out",
        config=section,
        pg_collection=groups,
        model_type=model_type if kind in EXPORTED else None,
    )
    assert read_config(tmp_path / "out")["model_type"] == model_type
    assert same(weights(tmp_path / "in"), weights(tmp_path / "out"))
    again = getattr(transformers, type(model).__name__).from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, theirs)
    assert section_of(read_config(tmp_path / "out"), dtype="float32") == section_of(
        read_config(tmp_path / "in"), dtype="float32"
    )


@pytest.mark.parametrize("kind", ["gemma2", "gemma3-scaled", "olmo2", "granite", "cohere2"])
def test_gradients_equal_those_of_transformers(kind, groups, tmp_path):
    model = make(kind, tmp_path)
    section, chunk = imported(tmp_path, groups)
    tokens = TOKENS.clamp(min=2)  # transformers gives the row of the padding token, 0 or 1, no gradient
    labels, positions = tokens.roll(-1, 1), torch.arange(20).expand(2, -1)
    chunk(tokens, positions, None, labels=labels).mean().backward()
    torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten()).backward()
    theirs = {name: value.grad for name, value in model.named_parameters()}
    family = FAMILIES[read_config(tmp_path)["model_type"]]
    ours = {}
    for _, value, origin in parameter_origins([chunk], groups, family):
        ours |= zip(origin.tensors, stored_tensors(value.grad, section, origin), strict=True)
    assert ours.keys() == theirs.keys()
    assert max((ours[name] - grad).abs().max() for name, grad in theirs.items()) < 1e-6


SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
LAYOUTS = {
    "llama TP": ("llama", {SIZES[0]: 2}),
    "llama-tied PP": ("llama-tied-llama3", {SIZES[1]: 2}),
    "qwen2 TP SP": ("qwen2", {SIZES[0]: 2, "sequence_parallel": True}),
    "qwen3 PP": ("qwen3", {SIZES[1]: 2}),
    "mistral TP": ("mistral-window", {SIZES[0]: 2}),
    "phi3 TP": ("phi3", {SIZES[0]: 2}),
    "qwen2-moe EP": ("qwen2-moe", {SIZES[2]: 2}),
    "qwen3-moe TP EP": (
        "qwen3-moe",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "deepseek-v3 TP EP": (
        "deepseek-v3",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "deepseek-v2-lite TP EP": (
        "deepseek-v2-lite",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "deepseek-v2 PP": ("deepseek-v2", {SIZES[1]: 2, "num_layers_in_first_pipeline_stage": 2}),
    "nemotron-h TP": ("nemotron-h", {SIZES[0]: 2, "sequence_parallel": True}),
    "qwen3-next TP EP": (
        "qwen3-next",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "qwen3-next PP": ("qwen3-next", {SIZES[1]: 2}),
    "nemotron-h PP": ("nemotron-h", {SIZES[1]: 2}),
    "nemotron-h-moe TP EP": (
        "nemotron-h-moe",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "gpt-oss TP EP": (
        "gpt-oss",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
    "olmo2 TP": ("olmo2", {SIZES[0]: 2}),
    "cohere2 PP": ("cohere2", {SIZES[1]: 2}),
    "gpt-neox TP SP": ("gpt-neox", {SIZES[0]: 2, "sequence_parallel": True}),
    "smollm3 PP": ("smollm3", {SIZES[1]: 2}),
    "gemma TP": ("gemma", {SIZES[0]: 2}),
    "gemma2 PP": ("gemma2", {SIZES[1]: 2}),
    "gemma3 TP SP": ("gemma3", {SIZES[0]: 2, "sequence_parallel": True}),
    "mixtral EP": ("mixtral", {SIZES[2]: 2}),
    "mixtral TP EP": (
        "mixtral",
        {SIZES[0]: 2, SIZES[2]: 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    ),
}


FURTHER = ("smollm3 PP", "cohere2 PP", "qwen3-next PP", "mixtral EP")
"""Layouts that run in the matrix only."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name in FURTHER)) for name in LAYOUTS]
)
def test_two_ranks_hold_the_weights_of_one_and_match_transformers(name, groups, pool, tmp_path):
    kind, layout = LAYOUTS[name]
    model = make(kind, tmp_path / "in")
    _, chunk = imported(tmp_path / "in", groups)
    (tmp_path / "checkpoint").mkdir()
    dist_checkpointing.save(chunk.sharded_state_dict(), str(tmp_path / "checkpoint"))
    both = pool.run(on_this_rank, tmp_path / "in", str(tmp_path / "checkpoint"), layout)
    assert [equal for equal, _, _ in both] == [True, True]
    whole = sum(value.numel() for value in chunk.parameters())
    assert max(size for _, size, _ in both) < 0.8 * whole
    with torch.no_grad():
        assert (both[-1][2] - model(TOKENS).logits).abs().max() < 1e-5


def test_two_ranks_score_and_generate_as_transformers(pool, tmp_path):
    model = make("llama", tmp_path / "in")
    pairs = [(TOKENS[0].tolist(), TOKENS[1].tolist()), ([3, 4], [5]), ([3, 4], [6])]
    both = pool.run(scores_on_this_rank, tmp_path / "in", {SIZES[0]: 2}, pairs)
    assert both[0] == both[1]
    scores, texts = both[0]
    for score, (context, continuation) in zip(scores, pairs, strict=True):
        with torch.no_grad():
            rows = model(torch.tensor([[*context, *continuation]])).logits[0].log_softmax(-1)
        rows = rows[len(context) - 1 : -1]
        expected = float(rows.gather(1, torch.tensor(continuation)[:, None]).sum())
        assert score.log_likelihood == pytest.approx(expected, rel=1e-5)
    generated = model.generate(
        torch.tensor([pairs[0][0]]), max_new_tokens=5, do_sample=False, eos_token_id=None
    )
    assert texts == [generated[0, -5:].tolist()]


def test_several_files_are_read_and_written_in_bfloat16(groups, tmp_path):
    make("llama", tmp_path / "in", shard="12KB", dtype=torch.bfloat16)
    section, chunk = imported(tmp_path / "in", groups, dtype="bfloat16")
    save_hf_model(
        chunk,
        tmp_path / "out",
        config=section,
        pg_collection=groups,
        shard_bytes=9000,
    )
    assert same(weights(tmp_path / "in"), weights(tmp_path / "out"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {
        path.name for path in (tmp_path / "out").glob("*.safetensors")
    }


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        *((kind, {"rope_type": "linear", "factor": 3.0}) for kind in ("llama", "gpt-oss", "gemma3-scaled")),
        *((kind, {"rope_type": "yarn", "factor": 4.0}) for kind in ("llama", "deepseek-v3", "olmo3-yarn")),
        ("qwen2", {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}),
    ],
    ids=str,
)
def test_an_added_scaling_of_positions_is_read_as_by_transformers(kind, scaling, groups, tmp_path):
    cls = type(make(kind, tmp_path))
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["rope_parameters"]
    content["rope_scaling"] = scaling
    (tmp_path / "config.json").write_text(json.dumps(content))
    _, chunk = imported(tmp_path, groups)
    with torch.no_grad():
        theirs = cls.from_pretrained(tmp_path).eval()(TOKENS).logits
        assert (chunk(TOKENS, torch.arange(20).expand(2, -1), None) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("digits", ["float32", "bfloat16"])
def test_values_that_are_rounded_are_logged(digits, groups, tmp_path, caplog):
    make("llama", tmp_path, dtype=torch.bfloat16)
    stored = {name: value.float() for name, value in weights(tmp_path).items()}
    name = "model.layers.1.mlp.down_proj.weight"
    stored[name] = stored[name] * (1 + 2.0**-20 if digits == "float32" else 2.0)
    save_file(stored, tmp_path / "model.safetensors")
    imported(tmp_path, groups, dtype="bfloat16")
    warned = "1 parameters (decoder.layers.1.mlp.linear_fc2.weight, ...) are rounded" in caplog.text
    assert warned == (digits == "float32")


def test_memory_mapped_parameters_are_loaded_and_read(groups, tmp_path):
    make("qwen2", tmp_path / "in")
    section, chunk = imported(tmp_path / "in", groups)
    paged = build(section, groups)
    (tmp_path / "pages").mkdir()
    memory_map_parameters([paged], tmp_path / "pages")
    load_hf_weights([paged], tmp_path / "in", pg_collection=groups)
    assert same(dict(chunk.named_parameters()), dict(paged.named_parameters()))


def test_a_checkpoint_is_exported_one_kind_of_parameter_at_a_time(groups, tmp_path):
    make("llama", tmp_path / "in")
    section, chunk = imported(tmp_path / "in", groups)
    kinds = []

    def load(is_selected):
        stored = {name: value for name, value in chunk.named_parameters() if is_selected(name)}
        kinds.append(len(stored))
        empty.load_state_dict(stored, strict=False)

    with memory_mapped_model(
        section, groups=groups, layer_spec=host_block_spec, folder=tmp_path / "pages"
    ) as empty:
        export_model(empty, tmp_path / "out", section=section, load=load, pg_collection=groups)
    assert list((tmp_path / "pages").iterdir()) == []
    assert same(weights(tmp_path / "in"), weights(tmp_path / "out"))
    assert sum(kinds) == len(list(chunk.named_parameters()))


def test_a_padded_vocabulary_has_rows_of_zeros(groups, tmp_path):
    make("llama", tmp_path / "in")
    section = section_of(read_config(tmp_path / "in"), dtype="float32")
    section.transformer_impl, section.vocab_size = "local", 128
    chunk = build(section, groups)
    load_hf_weights([chunk], tmp_path / "in", pg_collection=groups)
    rows = chunk.embedding.word_embeddings.weight
    assert (rows[96:] == 0).all()
    assert (rows[:96] != 0).all()


def losses(model):
    """Return the losses of transformers."""
    labels = TOKENS.roll(-1, 1).flatten()
    with torch.no_grad():
        logits = model(TOKENS).logits.flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none").view(2, -1)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "granite", "nemotron-h"])
def test_padding_of_the_vocabulary_has_no_part_in_the_loss(kind, groups, tmp_path):
    theirs = losses(make(kind, tmp_path))
    ours, padding = losses_on_this_rank(tmp_path, {}, 128, groups=groups)
    assert ((ours - theirs).abs().max() < 1e-5, padding) == (True, 0.0)


@pytest.mark.parametrize("rows", [128, 256])
def test_padding_on_the_last_rank_has_no_part_in_the_loss(rows, pool, tmp_path):
    theirs = losses(make("llama", tmp_path))
    for ours, padding in pool.run(losses_on_this_rank, tmp_path, {SIZES[0]: 2}, rows):
        assert ((ours - theirs).abs().max() < 1e-5, padding) == (True, 0.0)


def test_rows_of_tokens_of_the_tokenizer_are_no_padding(tmp_path, groups):
    make("llama", tmp_path)
    section = section_of_folder(tmp_path)
    assert (section.vocab_size, section.unpadded_vocab_size) == (128, 96)
    section.transformer_impl = "local"
    chunk = build(section, groups, tokenizer_vocab_size=100)
    logits = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
    lowest = torch.finfo(logits.dtype).min
    assert ((logits[..., :100] > lowest).all(), (logits[..., 100:] == lowest).all()) == (True, True)


@pytest.mark.parametrize(
    ("options", "tokens", "rows"),
    [({}, None, 128), ({"padded_vocabulary": True}, None, 100), ({}, 96, 100)],
)
def test_padding_for_a_tokenizer_is_not_exported(groups, tmp_path, options, tokens, rows):
    make("llama", tmp_path / "in")
    section = section_of_folder(tmp_path / "in")
    section.transformer_impl, section.unpadded_vocab_size = "local", tokens
    chunk = build(section, groups, tokenizer_vocab_size=100)
    with memory_mapped_model(
        section, groups=groups, layer_spec=host_block_spec, folder=tmp_path / "pages"
    ) as empty:
        export_model(
            empty,
            tmp_path / "out",
            section=section,
            load=lambda _: empty.load_state_dict(chunk.state_dict(), strict=False),
            pg_collection=groups,
            tokenizer_vocab_size=100,
            **options,
        )
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (exported.config.vocab_size, len(exported.get_input_embeddings().weight)) == (rows, rows)
    own = chunk.embedding.word_embeddings.weight
    assert torch.equal(exported.get_input_embeddings().weight, own[:rows])
    positions = torch.arange(20).expand(2, -1)
    with torch.no_grad():
        difference = exported(TOKENS).logits - chunk(TOKENS, positions, None)[..., :rows]
    assert difference.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ('{"eos_token_id": [1, 2]}', {1, 2}),
        ('{"eos_token_id": 3}', {3}),
        ("{}", set()),
        ("[]", set()),
        ("{", set()),
    ],
)
def test_tokens_that_end_a_text_are_those_of_generation_config(content, tokens, tmp_path):
    assert stop_tokens(tmp_path) == set()
    (tmp_path / GENERATION).write_text(content)
    assert stop_tokens(tmp_path) == tokens


def test_padding_is_not_exported_and_ids_of_tokens_are(groups, tmp_path):
    make("llama", tmp_path / "in")
    section = section_of_folder(tmp_path / "in")
    section.transformer_impl = "local"
    assert section.vocab_size == 128
    chunk = build(section, groups)
    load_hf_weights([chunk], tmp_path / "in")
    (tmp_path / "checkpoint").mkdir()
    carry_files([tmp_path / "in"], tmp_path / "checkpoint")
    with memory_mapped_model(
        section, groups=groups, layer_spec=host_block_spec, folder=tmp_path / "pages"
    ) as empty:
        export_model(
            empty,
            tmp_path / "out",
            section=section,
            load=lambda _: empty.load_state_dict(chunk.state_dict(), strict=False),
            pg_collection=groups,
            carried=tmp_path / "checkpoint",
        )
    assert same(weights(tmp_path / "in"), weights(tmp_path / "out"))
    names = ("vocab_size", "eos_token_id", "bos_token_id")
    before, after = (read_config(tmp_path / name) for name in ("in", "out"))
    assert [after[name] for name in names] == [before[name] for name in names]
    assert (tmp_path / "out" / "generation_config.json").is_file()


@pytest.mark.parametrize("kind", ["llama-tied-llama3", "gpt-oss-no-window", "nemotron-h"])
def test_a_shorter_training_leaves_every_field_of_config_json(kind, groups, tmp_path):
    model = make(kind, tmp_path / "in")
    section = section_of_folder(tmp_path / "in")
    section.transformer_impl = "local"
    section.max_position_embeddings, section.seq_length = None, 16  # as of a section that does not limit it
    chunk = build(section, groups)
    load_hf_weights([chunk], tmp_path / "in")
    template = read_config(tmp_path / "in")
    options = {"template": template, "vocab_size": template["vocab_size"]}
    save_hf_model(chunk, tmp_path / "out", config=section, pg_collection=groups, **options)
    after = read_config(tmp_path / "out")
    names = template.keys() - {"transformers_version"}
    assert {name: after[name] for name in names} == {name: template[name] for name in names}
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(exported(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "only llama, mistral, qwen2, qwen3, mixtral, .*phi3, .* can be converted"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' cannot be converted"),
        ({"sliding_window": 8}, "sliding_window=8 cannot be converted"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotary embedding .*dynamic.* cannot"),
        ({"rope_parameters": {"rope_theta": 0.5}}, "the base must be an integer"),
    ],
)
def test_unconvertible_configs_are_rejected(change, message, tmp_path):
    content = {**SMALL, "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6}
    (tmp_path / "config.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(HuggingFaceError, match=message):
        section_of(read_config(tmp_path), dtype="float32")


@pytest.mark.parametrize(
    "family",
    [
        *(
            "Llama",
            "Mistral",
            "Qwen2",
            "Qwen3",
            "Mixtral",
            "Qwen2Moe",
            "Qwen3Moe",
            "DeepseekV3",
            "Phi3",
            "GptOss",
            "Cohere",
            "Cohere2",
            "GPTNeoX",
        ),
        *(
            "Gemma",
            "Gemma2",
            "Gemma3Text",
            "Olmo2",
            "Olmo3",
            "Olmoe",
            "SmolLM3",
            "Exaone4",
            "Granite",
            "SeedOss",
        ),
    ],
)
def test_missing_fields_have_the_defaults_of_transformers(family, tmp_path):
    whole = getattr(transformers, f"{family}Config")().to_dict()
    least = {key: whole[key] for key in ("model_type", *REQUIRED)}
    assert section_of(least, dtype="float32") == section_of(whole, dtype="float32")


def test_all_missing_required_fields_are_listed():
    with pytest.raises(
        HuggingFaceError, match=r"lacks num_hidden_layers, intermediate_size, vocab_size, because"
    ):
        section_of({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}, dtype="float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"sliding_attention": {}}}, "has no entry 'full_attention'"),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"factor": 2.0}}},
            "of layers with a window",
        ),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True cannot be converted"),
        ({"hidden_act": "silu"}, "hidden_act='silu' cannot be converted"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 cannot be converted"),
        (
            {"rope_scaling": {"rope_type": "yarn", "truncate": False}},
            r"truncate in .* because transformers 5 ignores it where layers with",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            r"type in .* because transformers 5 ignores it where layers with",
        ),
    ],
)
def test_unconvertible_gemmas_are_rejected(change, message):
    content = {**dict.fromkeys(REQUIRED, 8), "model_type": "gemma3_text", **change}
    with pytest.raises(HuggingFaceError, match=message):
        section_of(content, dtype="float32")


def test_a_rotary_base_that_versions_of_transformers_read_differently_is_rejected(groups, tmp_path):
    make("olmo3", tmp_path)
    content = {**json.loads((tmp_path / "config.json").read_text()), "rope_theta": 1000.0}
    del content["rope_parameters"]
    bases = transformers.Olmo3Config(**content).rope_parameters
    assert [bases[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")] == [
        1000.0,
        500000.0,
    ]
    with pytest.raises(
        HuggingFaceError, match="rotates layers with a window by 500000, and earlier versions by"
    ):
        section_of(content, dtype="float32")
    content["rope_parameters"] = {kind: {"rope_theta": 1000.0} for kind in bases}
    assert section_of(content, dtype="float32").rotary_base_local == 1000


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaling_that_transformers_reads_as_another_is_rejected(kind):
    content = {
        **dict.fromkeys(REQUIRED, 8),
        "model_type": "phi3",
        "rope_scaling": {"type": kind, "factor": 2.0},
    }
    with pytest.raises(HuggingFaceError, match="of a phi3 cannot be converted, because transformers reads"):
        section_of(content, dtype="float32")


def test_time_steps_are_not_limited_in_an_export(groups, tmp_path, caplog):
    model = make("nemotron-h", tmp_path / "in")
    for name, value in model.named_parameters():
        if name.endswith("dt_bias"):  # steps of 0.0009, below the lower limit
            value.data.fill_(-7.0)
    model.save_pretrained(tmp_path / "in")
    content = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps({**content, "time_step_min": 0.1}))
    section, chunk = imported(tmp_path / "in", groups)
    assert "time_step_min=0.1: transformers raises smaller time steps to it" in caplog.text
    save_hf_model(chunk, tmp_path / "out", config=section, template=read_config(tmp_path / "in"))
    cls = type(model)
    limited, exported = (cls.from_pretrained(tmp_path / name).eval() for name in ("in", "out"))
    with torch.no_grad():
        ours = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
        differences = [(ours - each(TOKENS).logits).abs().max() for each in (exported, limited)]
    assert differences[0] < 1e-5 < 1e-3 < differences[1]


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("GPTNeoX", {"rope_theta": 100.0}, r"rope_theta=100.0, rotary_emb_base=10000.0 contradict"),
        ("GPTNeoX", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0.5, rotary_pct=0.25 contradict"),
        ("Cohere", {"rms_norm_eps": 1e-3}, r"rms_norm_eps=0.001, layer_norm_eps=1e-05 contradict"),
        ("GptOss", {"experts_per_token": 2}, r"num_experts_per_tok=4, experts_per_token=2 contradict"),
    ],
)
def test_spellings_of_a_field_that_contradict_each_other_are_rejected(family, change, message):
    content = {**getattr(transformers, f"{family}Config")().to_dict(), **change}
    content.pop("rope_parameters" if family == "GPTNeoX" else "transformers_version")
    with pytest.raises(HuggingFaceError, match=message):
        section_of(content, dtype="float32")


def test_layers_without_rotation_must_be_listed_completely():
    content = {**dict.fromkeys(REQUIRED, 8), "model_type": "smollm3", "no_rope_layers": [1, 0]}
    with pytest.raises(HuggingFaceError, match="no_rope_layers lists 2 layers of 8"):
        section_of(content, dtype="float32")


def test_the_text_part_of_a_model_of_images_is_loaded(groups, tmp_path, caplog):
    model = make_multimodal(tmp_path / "in")
    section, chunk = imported(tmp_path / "in", groups)
    with torch.no_grad():
        ours = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
        assert (ours - model(TOKENS).logits).abs().max() < 1e-5
    assert "tensors of an image encoder or of further tokens are not loaded" in caplog.text
    carry_files([tmp_path / "in"], tmp_path)
    template = read_template(tmp_path)
    save_hf_model(
        chunk, tmp_path / "out", config=section, model_type=template["model_type"], template=template
    )
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


def test_a_model_of_images_without_its_text_part_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    with pytest.raises(HuggingFaceError, match="has no text_config"):
        read_config(tmp_path)


def test_constants_of_earlier_versions_are_skipped(groups, tmp_path):
    make("gpt-neox", tmp_path)
    masks = {f"gpt_neox.layers.0.attention.{name}": torch.zeros(1) for name in ("bias", "masked_bias")}
    save_file({**weights(tmp_path), **masks}, tmp_path / "model.safetensors")
    imported(tmp_path, groups)
    save_file({**weights(tmp_path), "other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(HuggingFaceError, match=r"other \(1 tensors\) belong to no parameter"):
        imported(tmp_path, groups)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["linear_attention"]}, "cannot be converted with num_hidden_layers=8"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "hybrids have an integer base and no scaling",
        ),
    ],
)
def test_unconvertible_gated_delta_models_are_rejected(change, message):
    required = FAMILIES["qwen3_next"].hybrid.required
    with pytest.raises(HuggingFaceError, match=message):
        section_of({"model_type": "qwen3_next", **dict.fromkeys(required, 8), **change}, dtype="float32")


def test_patterns_of_letters_are_read():
    content = {**dict.fromkeys(REQUIRED, 8), "model_type": "exaone4", "sliding_window_pattern": "LLLG"}
    found = section_of(content, dtype="float32")
    assert found.window_attn_skip_freq == [1, 1, 1, 0] * 2
    assert found.transformer == {"no_rope_freq": [0, 0, 0, 1] * 2}


def test_rotary_bases_and_patterns_of_earlier_versions_are_read():
    content = {**dict.fromkeys(REQUIRED, 12), "model_type": "gemma3_text", "rope_theta": 2e6}
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3}
    found = section_of(content | scaling, dtype="float32")
    bases = (found.rotary_base, found.rotary_base_local, found.seq_len_interpolation_factor)
    assert bases == (2_000_000, 10_000, 8.0)
    assert found.window_attn_skip_freq == [1, 1, 0] * 4


@pytest.mark.parametrize("factor", [{}, {"factor": None}], ids=["none", "null"])
@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_scaled_rotary_embedding_without_its_factor_is_rejected(kind, factor):
    scaling = {"rope_type": kind, **({} if kind == "linear" else LLAMA3_SCALING), **factor}
    content = {**dict.fromkeys(REQUIRED, 8), "model_type": "llama", "rope_scaling": scaling}
    with pytest.raises(HuggingFaceError, match=r"the rotary embedding .* cannot be converted"):
        section_of(content, dtype="float32")


def test_mxfp4_is_dequantized_as_by_transformers(tmp_path):
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    torch.manual_seed(2)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8)  # experts, rows, groups, bytes
    scales = torch.randint(118, 134, (3, 8, 2), dtype=torch.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # experts, inputs, rows
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "model.safetensors")
    origin = TensorOrigin(tensors=(name,), form="glu", split=0, stacked=True, expert=1)
    with TensorFolder(tmp_path) as stored:
        assert stacked_tensors(stored, origin) == [f"{name}_blocks", f"{name}_scales"]
        ranks = [read_expert(stored, origin, rank=rank, size=2, dtype=torch.float32) for rank in (0, 1)]
    gate, up = (torch.cat([parts[number] for parts in ranks]) for number in (0, 1))
    assert torch.equal(gate, theirs[1].T[0::2])
    assert torch.equal(up, theirs[1].T[1::2])


def test_another_quantization_is_rejected():
    content = {
        **dict.fromkeys(REQUIRED, 8),
        "model_type": "gpt_oss",
        "quantization_config": {"quant_method": "awq"},
    }
    with pytest.raises(HuggingFaceError, match="because only MXFP4 is dequantized"):
        section_of(content, dtype="bfloat16")


NEMOTRON = {
    "model_type": "nemotron_h",
    **dict.fromkeys(FAMILIES["nemotron_h"].hybrid.required, 8),
    "hybrid_override_pattern": "M*-E",
    "num_experts_per_tok": 2,
}


def test_patterns_of_earlier_versions_are_read():
    found = section_of(NEMOTRON, dtype="float32")
    assert (found.hybrid_layer_pattern, found.num_layers, found.num_moe_experts) == ("M*-E", 4, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hybrid_override_pattern": "M*x"},
            r"hybrid_override_pattern='M\*x' cannot be converted, because layers",
        ),
        ({"n_group": 4, "topk_group": 2}, r"num_experts_per_tok=2 with topk_group=2 \(.* cannot be conv"),
        ({"n_shared_experts": 2}, "n_shared_experts=2 cannot be converted"),
        ({"mamba_rms_norm": False}, "mamba_rms_norm=False: unknown fields of a nemotron_h"),
    ],
)
def test_unconvertible_hybrids_are_rejected(change, message):
    with pytest.raises(HuggingFaceError, match=message):
        section_of(NEMOTRON | change, dtype="float32")


KIMI_K2 = {
    "vocab_size": 163840,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
}


@pytest.mark.parametrize(
    ("family", "settings", "size"),
    [
        ("Glm4Moe", {"attention_bias": True, "head_dim": 128}, 106_852_245_504),  # GLM-4.5-Air
        ("DeepseekV3", KIMI_K2, 1_026_408_209_408),
        ("Olmoe", {"intermediate_size": 1024}, 6_919_161_856),
    ],
)
def test_models_have_the_size_of_those_of_transformers(family, settings, size):
    config = getattr(transformers, f"{family}Config")(**settings)
    with torch.device("meta"):
        theirs = getattr(transformers, f"{family}ForCausalLM")(config)
    ours = section_of(json.loads(config.to_json_string()), dtype="bfloat16")
    assert parameter_count(ours) == sum(each.numel() for each in theirs.parameters()) == size


def test_kimi_k2_is_a_deepseek_v3():
    content = json.loads(transformers.DeepseekV3Config(**KIMI_K2).to_json_string())
    sections = [
        section_of({**content, "model_type": name}, dtype="bfloat16") for name in ("deepseek_v3", "kimi_k2")
    ]
    assert sections[0] == sections[1]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"n_group": 1, "rms_norm_eps": 1e-5}, ["rms_norm_eps=1e-05 (the norms of latent vectors have"]),
        (
            {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 6},
            ["num_experts_per_tok=6 with topk_group=2"],
        ),
        ({"n_group": 1, "num_experts_per_tok": 1}, ["norm_topk_prob=True with num_experts_per_tok=1"]),
        ({"n_group": 1, "norm_topk_prob": False}, ["norm_topk_prob=False with num_experts_per_tok=8"]),
        ({"n_group": 1}, []),
    ],
)
def test_a_model_that_is_computed_differently_is_a_section_for_random_weights_only(change, parts):
    content = json.loads(transformers.DeepseekV3Config(**change).to_json_string())
    assert [part[: len(start)] for part, start in zip(unequal_parts(content), parts, strict=True)] == parts
    loose = section_of(content, dtype="bfloat16", exact=False)
    assert loose.layernorm_epsilon == content["rms_norm_eps"]
    if parts:
        with pytest.raises(HuggingFaceError, match="because the model would compute different results"):
            section_of(content, dtype="bfloat16")


def test_a_hybrid_is_no_family_of_gpts():
    hybrid = section_of(NEMOTRON, dtype="float32")
    with pytest.raises(HuggingFaceError, match="'llama' is not the family of a MambaModelConfig"):
        config_of(hybrid, vocab_size=8, dtype="float32", model_type="llama")


def test_mamba_layers_of_a_width_that_transformers_rejects_are_rejected(tmp_path):
    make("mamba2", tmp_path)
    content = read_config(tmp_path)
    section = section_of(content, dtype="float32")
    section.mamba_num_heads = 12
    assert config_of(section, vocab_size=96, dtype="float32")["expand"] == 12 * 8 / 32
    section.mamba_num_heads = 10
    with pytest.raises(
        HuggingFaceError, match=r"expand=2.5 \(num_heads \* head_dim is 80, and hidden_size 32"
    ):
        config_of(section, vocab_size=96, dtype="float32", model_type="mamba2")
    with pytest.raises(HuggingFaceError, match=r"expand=2 \(num_heads"):
        section_of({**content, "num_heads": 10}, dtype="float32")


@pytest.mark.parametrize(("text", "message"), [(None, "does not exist"), ("{", "is not JSON")])
def test_a_folder_without_a_readable_config_is_rejected(text, message, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(HuggingFaceError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("kind", ["llama-tied-llama3", "gpt-neox-sequential"])
def test_a_tied_output_layer_with_other_values_is_rejected(kind, groups, tmp_path):
    make(kind, tmp_path)
    family, stored = FAMILIES[read_config(tmp_path)["model_type"]], weights(tmp_path)
    rows = stored[
        origin_of("output_layer.weight", family=family, layer=int, expert=int, tied=True).tensors[0]
    ]
    save_file({**stored, output_tensor(family): rows.clone()}, tmp_path / "model.safetensors")
    imported(tmp_path, groups)
    save_file({**stored, output_tensor(family): rows + 1}, tmp_path / "model.safetensors")
    with pytest.raises(HuggingFaceError, match=r"lm_head.weight differs|embed_out.weight differs"):
        imported(tmp_path, groups)


def test_a_folder_with_other_tensors_is_rejected(groups, tmp_path):
    make("llama", tmp_path / "llama")
    make("qwen2", tmp_path / "qwen2")
    section, chunk = imported(tmp_path / "llama", groups)
    with pytest.raises(HuggingFaceError, match=r"self_attn.k_proj.bias.* belong to no parameter"):
        load_hf_weights([chunk], tmp_path / "qwen2", pg_collection=groups)
    section.add_qkv_bias = True
    with pytest.raises(HuggingFaceError, match=r"has no tensor model.layers.0.self_attn.q_proj.bias"):
        load_hf_weights([build(section, groups)], tmp_path / "llama", pg_collection=groups)
    section.add_qkv_bias, section.ffn_hidden_size = False, 64
    with pytest.raises(HuggingFaceError, match=r"linear_fc1.weight: has shape \[128, 32\]"):
        load_hf_weights([build(section, groups)], tmp_path / "llama", pg_collection=groups)
    with pytest.raises(FileExistsError, match="holds files"):
        save_hf_model(
            chunk,
            tmp_path / "llama",
            config=section_of(read_config(tmp_path / "llama"), dtype="float32"),
            pg_collection=groups,
        )


def test_a_folder_without_weights_or_with_a_broken_file_is_rejected(tmp_path):
    with pytest.raises(HuggingFaceError, match="holds no"):
        TensorFolder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(HuggingFaceError, match="cannot be read"):
        TensorFolder(tmp_path)


@pytest.mark.parametrize("kind", [T5ModelConfig, MimoModelConfig])
def test_another_kind_of_model_is_not_exported(tmp_path, kind):
    section = kind(num_layers=1, hidden_size=8, num_attention_heads=1)
    with pytest.raises(HuggingFaceError, match=f"is a {kind.__name__}, and only GPTs"):
        require_convertible(section, source=tmp_path)


def test_a_hybrid_with_tied_embeddings_is_no_nemotron_h():
    tied = dataclasses.replace(
        section_of(NEMOTRON, dtype="float32"), share_embeddings_and_output_weights=True
    )
    with pytest.raises(
        HuggingFaceError, match=r"share_embeddings_and_output_weights=True: cannot be exported"
    ):
        config_of(tied, vocab_size=8, dtype="float32", model_type="nemotron_h")


def test_an_unconvertible_model_is_not_exported(groups, tmp_path):
    make("llama", tmp_path)
    section = section_of(read_config(tmp_path), dtype="float32")
    section.activation_func, section.rotary_interleaved = "gelu", True
    wrong = r"model.activation_func='gelu', model.rotary_interleaved=True: cannot be exported"
    with pytest.raises(HuggingFaceError, match=wrong):
        config_of(section, vocab_size=96, dtype="float32")
