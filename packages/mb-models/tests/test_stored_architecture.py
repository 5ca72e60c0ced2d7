"""The architecture of a checkpoint is taken where the user has set nothing."""

import pytest

from mb_models.config import GPTModelConfig
from mb_models.hybrid.config import MambaModelConfig
from mb_models.training.stored_architecture import StoredArchitectureError, adopt_stored_architecture


class Origins:
    """Origins of which some are the user's."""

    def __init__(self, *paths):
        self.paths = paths

    def by_user(self, path):
        return path in self.paths


SECTION = GPTModelConfig(
    num_layers=2, hidden_size=32, num_attention_heads=4, transformer={"flash_decode": True}
)
STORED = {
    "_target_": "GPTModelConfig",
    "num_layers": 3,
    "hidden_dropout": 0.3,
    "tensor_model_parallel_size": 2,
    "bf16": True,
    "seq_length": 16,
    "unknown": 1,
    "transformer": {"mamba_state_dim": 16, "use_te_activation_func": True},
}


def adopted(*by_user, stored=STORED, parallel=False):
    found = adopt_stored_architecture(
        SECTION, stored, origins=Origins(*by_user), source="there", parallel=parallel
    )
    return found.section, found.conflicts, found.fields


def test_the_architecture_is_taken_and_what_belongs_to_the_run_is_kept():
    section, conflicts, fields = adopted()
    assert (section.num_layers, section.hidden_size, section.hidden_dropout) == (3, 32, 0.3)
    assert (section.tensor_model_parallel_size, section.bf16, section.seq_length) == (1, False, 1024)
    assert section.transformer == {"flash_decode": True, "mamba_state_dim": 16}
    assert (conflicts, "num_layers" in fields) == ([], True)
    assert adopted(parallel=True)[0].tensor_model_parallel_size == 2


@pytest.mark.parametrize("target", ["HybridModelConfig", "MambaModelConfig", "x.Provider", ""])
def test_a_hybrid_has_two_names(target):
    section = MambaModelConfig(num_layers=2, hidden_size=32, num_attention_heads=4, hybrid_layer_pattern="M*")
    stored = {"_target_": target, "hybrid_layer_pattern": "M*M", "num_layers": 3}
    found = adopt_stored_architecture(section, stored, origins=Origins(), source="there")
    assert (found.section.hybrid_layer_pattern, found.section.num_layers) == ("M*M", 3)


def test_a_value_of_the_user_is_kept_and_the_conflict_named():
    section, conflicts, fields = adopted("model.hidden_dropout")
    assert section.hidden_dropout == SECTION.hidden_dropout
    assert conflicts == [
        f"model.hidden_dropout: {SECTION.hidden_dropout} was set and applies; the checkpoint has 0.3"
    ]
    assert "hidden_dropout" not in fields


def test_values_with_which_the_weights_cannot_be_loaded_are_rejected_together():
    stored = {**STORED, "hidden_size": 64}
    text = "model.num_layers is 2 and 3 there, model.hidden_size is 32 and 64 there"
    with pytest.raises(StoredArchitectureError, match=text):
        adopted("model.num_layers", "model.hidden_size", stored=stored)


@pytest.mark.parametrize(
    "stored", [{"_target_": "T5ModelConfig"}, {"_target_": "x.Provider", "hybrid_layer_pattern": "M*"}]
)
def test_a_checkpoint_of_another_kind_of_model_is_rejected(stored):
    with pytest.raises(StoredArchitectureError, match="the model section is a GPTModelConfig"):
        adopted(stored=stored)
