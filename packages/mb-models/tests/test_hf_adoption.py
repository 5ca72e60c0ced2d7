"""The architecture of a Hugging Face folder in the section of a run, and small files that are carried along."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from hf_models import make
from hf_ranks import SMALL

from mb_models import GPTModelConfig, T5ModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf.adoption import adopt_architecture
from mb_models.hf.carried import carry_files, from_template, read_template
from mb_models.hf.config_json import UNSUPPORTED, config_of, read_config, same_family, section_of
from mb_models.hf.families import FAMILIES

pytest.importorskip("transformers")

PAGE = Path(__file__).parents[3] / "meta" / "docs" / "packages" / "mb-models.md"


class Origins:
    """Origins of values, of which the user has set some."""

    def __init__(self, *paths):
        self.paths = paths

    def by_user(self, path):
        return path in self.paths


def section(**values):
    return GPTModelConfig(num_layers=9, hidden_size=64, num_attention_heads=8, seq_length=50, **values)


def test_layout_lengths_and_settings_of_the_user_are_kept(tmp_path):
    make("qwen3", tmp_path)
    origins = Origins("model.rotary_base")
    ours = section(tensor_model_parallel_size=2, rotary_base=500, bf16=True, recompute_granularity="full")
    found = adopt_architecture(ours, str(tmp_path), origins=origins)
    adopted = found.section
    kept = (
        adopted.tensor_model_parallel_size,
        adopted.seq_length,
        adopted.bf16,
        adopted.recompute_granularity,
    )
    assert kept == (2, 50, True, "full")
    shape = (
        adopted.num_layers,
        adopted.hidden_size,
        adopted.kv_channels,
        adopted.qk_layernorm,
        adopted.rotary_base,
    )
    assert shape == (SMALL["num_hidden_layers"], SMALL["hidden_size"], 16, True, 500)
    assert adopted.vocab_size == 128  # 96 tokens and padding
    assert "num_layers" in found.fields
    assert "seq_length" not in found.fields
    again = adopt_architecture(adopted, str(tmp_path), origins=origins)
    assert (again.section, again.fields) == (adopted, [])


def test_further_fields_are_those_of_the_weights_and_of_the_user(tmp_path):
    make("gpt-oss", tmp_path)
    ours = section(transformer={"glu_linear_offset": 5.0, "test_mode": True})
    adopted = adopt_architecture(ours, str(tmp_path), origins=Origins("model.transformer.test_mode")).section
    assert adopted.transformer == {
        "glu_linear_offset": 1.0,
        "activation_func_clamp_value": 7.0,
        "test_mode": True,
    }


def test_a_subclass_keeps_its_own_fields(tmp_path):
    @dataclass(kw_only=True)
    class Named(GPTModelConfig):
        source: str = ""

    make("qwen3", tmp_path)
    ours = Named(num_layers=9, hidden_size=64, num_attention_heads=8, source="hub")
    found = adopt_architecture(ours, str(tmp_path), origins=Origins())
    assert (type(found.section), found.section.source) == (Named, "hub")
    assert found.section.num_layers == SMALL["num_hidden_layers"]


def test_a_section_with_a_family_of_the_user_is_rejected(tmp_path):
    class Custom(GPTModelConfig):
        def model_family(self):
            return None

    make("llama", tmp_path)
    with pytest.raises(HuggingFaceError, match=r"model: is a Custom"):
        adopt_architecture(
            Custom(num_layers=1, hidden_size=64, num_attention_heads=8), str(tmp_path), origins=Origins()
        )


@pytest.mark.parametrize("weights", [None, "runs/gpt_tiny/checkpoints"])
def test_without_a_hugging_face_folder_nothing_changes(weights):
    ours = section()
    assert adopt_architecture(ours, weights, origins=Origins()).section is ours


def test_another_kind_of_model_is_rejected(tmp_path):
    make("llama", tmp_path)
    ours = T5ModelConfig(num_layers=1, hidden_size=64, num_attention_heads=8)
    with pytest.raises(
        HuggingFaceError, match=r"model: is a T5ModelConfig, and .* holds a model for a GPTModelConfig"
    ):
        adopt_architecture(ours, str(tmp_path), origins=Origins())


def test_small_files_are_carried_from_folder_to_checkpoint_to_checkpoint(tmp_path):
    folders = [tmp_path / name for name in ("none", "model", "base", "run")]
    for folder in folders:
        folder.mkdir()
    template = {"model_type": "qwen3", "eos_token_id": 7, "vocab_size": 96, "dtype": "bfloat16"}
    (folders[1] / "config.json").write_text(json.dumps(template))
    (folders[1] / "generation_config.json").write_text("{}")
    carry_files(folders[:2], folders[2])
    carry_files([folders[2]], folders[3])
    assert sorted(path.name for path in folders[3].iterdir()) == ["generation_config.json", "hf_config.json"]
    assert read_template(folders[3]) == template
    for content in ({"vocab_size": 100}, {"vocab_size": 100, "eos_token_id": None}):
        assert from_template(content, template, config=section()) == {"vocab_size": 100, "eos_token_id": 7}
    assert read_template(folders[0]) == {}
    (folders[0] / "hf_config.json").write_text("{")
    assert read_template(folders[0]) == {}


def test_the_longest_sequence_is_that_of_the_model_of_training_or_of_the_user(tmp_path):
    make("llama", tmp_path)
    template = read_config(tmp_path) | {"max_position_embeddings": 512}
    trained = section_of(template, dtype="float32")
    written = []
    for positions, length in ((None, 64), (None, 4096), (2048, 64)):
        trained.max_position_embeddings, trained.seq_length = positions, length
        content = config_of(trained, vocab_size=128, dtype="float32")
        written.append(from_template(content, template, config=trained)["max_position_embeddings"])
    assert written == [512, 4096, 2048]


def test_fields_of_the_template_that_would_change_the_logits_are_left_out(tmp_path):
    make("mistral-window", tmp_path)
    template = read_config(tmp_path) | {"eos_token_id": 7}
    trained = section_of(template, dtype="float32")
    trained.window_size = None
    content = config_of(trained, vocab_size=128, dtype="float32")
    content.pop("sliding_window", None)
    completed = from_template(content, template, config=trained)
    assert (completed.get("sliding_window"), completed["eos_token_id"]) == (None, 7)


def test_the_page_lists_all_families_and_all_that_are_rejected():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    listed = dict(rows)
    assert FAMILIES.keys() <= listed.keys()
    assert {name: listed.get(name) for name in UNSUPPORTED} == dict(UNSUPPORTED)
    assert not FAMILIES.keys() & UNSUPPORTED.keys()


def test_an_export_has_the_family_of_the_import_while_it_computes_the_same(tmp_path):
    make("phi3", tmp_path)
    found = section_of(read_config(tmp_path), dtype="float32")
    assert same_family(found, "phi3") == "phi3"
    found.qk_layernorm = True
    assert [same_family(found, name) for name in ("phi3", "gpt2", None)] == [None, None, None]
