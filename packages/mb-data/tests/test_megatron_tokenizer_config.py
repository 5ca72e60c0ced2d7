"""Comparison with Megatron's tokenizer section, which is parsed because its import takes seconds and gigabytes."""

import ast
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from mb_data import TokenizerConfig

pytest.importorskip("megatron", reason="needs the mcore extra")

NEWER = {
    "hf_tokenizer_kwargs",
    "sp_tokenizer_kwargs",
    "tokenizer_prompt_format",
    "image_tag_type",
    "force_system_message",
    "make_vocab_size_divisible_by",
    "tensor_model_parallel_size",
    "rank",
    "use_tokenizer_vocab_size",
    "chat_template_path",
}


def megatron_fields():
    source = (
        Path(next(iter(find_spec("megatron").submodule_search_locations)))
        / "training/config/training_config.py"
    )
    (section,) = (
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "TokenizerConfig"
    )
    return {node.target.id: node.value for node in section.body if isinstance(node, ast.AnnAssign)}


def test_our_fields_and_defaults_are_megatrons():
    ours = {field.name: field.default for field in fields(TokenizerConfig)}
    theirs = megatron_fields()
    plain = {
        name: ast.literal_eval(value) for name, value in theirs.items() if not isinstance(value, ast.Call)
    }
    assert {name: ours[name] for name in plain} == plain
    assert theirs.keys() <= ours.keys()
    assert ours.keys() - theirs.keys() <= NEWER
