"""Folders in the Hugging Face format from elsewhere: each damage is one error, before anything large is allocated."""

import json
import time

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("megatron.core", reason="needs megatron")

from mb_models.errors import HuggingFaceError
from mb_models.hf.conversion import section_of_folder
from mb_models.hf.safetensors_files import INDEX, TensorFolder

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 32,
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.embed_tokens.weight": torch.zeros(16, 8)}, folder / "model.safetensors")
    return folder


DEEP = "[" * 100_000
CONFIGS = {
    "nested deep": DEEP,
    "a number of 5,000 digits": '{"hidden_size": ' + "9" * 5000 + "}",
    "no text": b"\xff\xfe\x00",
    "a list": "[]",
    **{
        f"{key}={value!r}": json.dumps({**CONFIG, key: value})
        for key, value in [
            ("hidden_size", "x"),
            ("hidden_size", None),
            ("hidden_size", 10**12),
            ("hidden_size", -8),
            ("hidden_size", 1.5e300),
            ("vocab_size", 2**40),
            ("vocab_size", 2**30),
            ("model_type", ["llama"]),
            ("model_type", {"a": 5}),
            ("num_hidden_layers", 10**9),
            ("num_hidden_layers", "x"),
            ("num_attention_heads", 0),
            ("num_attention_heads", []),
            ("rope_scaling", 5),
            ("rope_scaling", {"rope_type": [], "factor": None}),
            ("rms_norm_eps", "small"),
            ("tie_word_embeddings", []),
        ]
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_makes_no_model_is_one_error(folder, name):
    content = CONFIGS[name]
    (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.process_time()
    with pytest.raises(HuggingFaceError, match=r"config\.json"):
        section_of_folder(folder)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"weight_map": null}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": "../model.safetensors"}}',
        '{"weight_map": {"a": "/dev/zero"}}',
        '{"weight_map": {"a": "model/../../x"}}',
        DEEP,
        "9" * 5000,
        b"\xff\xfe",
    ],
)
def test_an_index_names_files_of_its_folder(folder, content):
    (folder / INDEX).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HuggingFaceError, match=r"index\.json: (is not an index|names)"):
        TensorFolder(folder)


def test_weights_of_another_type_are_one_error(folder):
    save_file({"model.embed_tokens.weight": torch.zeros(16, 8).int()}, folder / "model.safetensors")
    with pytest.raises(HuggingFaceError, match=r"the weights are torch\.int32, and only .* can be converted"):
        section_of_folder(folder)
