"""Model and tokenizer in the settings of a checkpoint."""

from types import SimpleNamespace

from mb_config import Provenance
from mb_config.megatron_lm.flag_table import parse_flags
from mb_config.megatron_lm.script import read_words
from mb_config.overrides.stored_sections import sections_of_arguments, sections_of_file, stored_tokenizer

BRIDGE = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 2
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  params_dtype: {_call_: true, _args_: [bfloat16], _target_: getattr}
tokenizer: {tokenizer_type: NullTokenizer, vocab_size: 256, padded_vocab_size: 512, tokenizer_model: null}
"""


def test_functions_of_megatron_bridge_are_names_and_other_objects_are_left_out(tmp_path):
    file = tmp_path / "run_config.yaml"
    file.write_text(BRIDGE)
    assert sections_of_file(file) == {
        "model": {
            "_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
            "num_layers": 2,
            "activation_func": "silu",
        },
        "tokenizer": {"tokenizer_type": "NullTokenizer", "vocab_size": 256},
    }
    file.write_text("train: {}\n")
    assert sections_of_file(file) == {"model": {}, "tokenizer": {}}


def test_arguments_of_megatron_lm_are_converted():
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --swiglu --mamba-state-dim 16"
    arguments = {**parse_flags(read_words(flags).words), "padded_vocab_size": 512, "unknown": 1}
    found = sections_of_arguments({**arguments, "tokenizer_type": "NullTokenizer", "vocab_size": 500})
    model = found["model"]
    assert (model["num_layers"], model["activation_func"], model["gated_linear_unit"]) == (2, "silu", True)
    assert (model["vocab_size"], model["transformer"]["mamba_state_dim"]) == (512, 16)
    assert model["share_embeddings_and_output_weights"] is True
    assert found["tokenizer"] == {"tokenizer_type": "NullTokenizer", "vocab_size": 500}


def test_a_tokenizer_is_taken_unless_the_user_has_set_one():
    stored, section = (
        {"tokenizer_type": "NullTokenizer", "vocab_size": 8},
        SimpleNamespace(tokenizer_type=None),
    )
    by_user = Provenance({"tokenizer.tokenizer_type": "run.yaml:1"})
    assert stored_tokenizer(section, stored, origins=by_user) == {}
    assert stored_tokenizer(section, {}, origins=Provenance()) == {}
    assert stored_tokenizer(section, stored, origins=Provenance()) == {"tokenizer_type": "NullTokenizer"}
