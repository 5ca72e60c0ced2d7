"""Optimizer states stored by another number of chained optimizers."""

import pytest

from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.megatron.chained_optimizer import fit_chained_state, parts_of

DENSE = {"wd_mult": 1.0, "is_expert_parallel": False, "lr": 0.1, "step": 3, "params": [0]}
EXPERT = {**DENSE, "is_expert_parallel": True, "params": [0]}
OWN_DENSE, OWN_EXPERT = {**DENSE, "lr": 9.0, "step": 0}, {**EXPERT, "lr": 9.0, "step": 0}


def inside(*groups):
    return {"optimizer": {"param_groups": list(groups)}, "param_state_sharding_type": "fully_reshardable"}


def test_as_many_as_were_stored_keep_their_tensors_rates_and_steps():
    stored = {0: {**inside(DENSE), "param_state": "a"}, 1: {**inside(EXPERT), "param_state": "b"}}
    assert fit_chained_state(stored, [[OWN_DENSE], [OWN_EXPERT]]) == stored
    plain = {"state": {}, "param_groups": [DENSE]}
    assert fit_chained_state(plain, [[OWN_DENSE]]) == plain


def test_optimizers_are_in_the_order_of_their_numbers():
    stored = {number: {**inside(DENSE), "param_state": number} for number in range(12)}
    assert [part["param_state"] for part in parts_of(stored)] == list(range(12))


def test_two_become_one_with_rates_and_steps_as_stored():
    stored = {0: inside(DENSE), 1: inside(EXPERT), "param_state": "tensors"}
    assert fit_chained_state(stored, [[OWN_DENSE]]) == {**inside(DENSE), "param_state": "tensors"}


def test_one_becomes_two():
    stored = {**inside(DENSE), 0: {"param_state": "a"}, 1: {"param_state": "b"}}
    assert fit_chained_state(stored, [[OWN_DENSE], [OWN_EXPERT]]) == {
        0: {**inside(DENSE), "param_state": "a"},
        1: {**inside(EXPERT), "param_state": "b"},
    }


def test_a_group_without_counterpart_is_rejected():
    stored = {0: inside(DENSE), 1: inside(EXPERT), "param_state": "tensors"}
    with pytest.raises(CheckpointLayoutError, match=r"'wd_mult': 0\.0"):
        fit_chained_state(stored, [[{**OWN_DENSE, "wd_mult": 0.0}]])


def test_the_state_of_other_optimizers_cannot_be_regrouped():
    stored = {0: {"state": {}, "param_groups": [DENSE]}, 1: {"state": {}, "param_groups": [EXPERT]}}
    with pytest.raises(CheckpointLayoutError, match="stored as 2 parts and this run has 1"):
        fit_chained_state(stored, [[OWN_DENSE]])
