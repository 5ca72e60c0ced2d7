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


def test_a_section_without_parameter_groups_is_rejected():
    for stored in ({}, {"state": {}, "param_groups": [{"params": [0]}]}):
        with pytest.raises(CheckpointLayoutError, match="stored without parameter groups"):
            fit_chained_state(stored, [[OWN_DENSE]])


STEPS = {"common_step": 3}


def test_two_optimizers_with_tensors_of_parameters_become_one_with_their_count_of_steps():
    request = {"state": {0: "a", 1: "b"}, "param_groups": [{"params": [7, 8]}]}
    stored = {
        0: {"state": STEPS, "param_groups": [DENSE]},
        1: {"state": STEPS, "param_groups": [EXPERT]},
        **request,
    }
    expected = {"state": {**STEPS, **request["state"]}, "param_groups": [{**DENSE, "params": [7, 8]}]}
    assert fit_chained_state(stored, [[OWN_DENSE]]) == expected
    half = {key: {"optimizer": stored[key]} for key in (0, 1)} | {
        "optimizer": request,
        "fp32_from_fp16_params": "c",
    }
    assert fit_chained_state(half, [[OWN_DENSE]]) == {"optimizer": expected, "fp32_from_fp16_params": "c"}


def test_one_optimizer_with_tensors_of_parameters_becomes_two_with_its_count_of_steps():
    requests = [{"state": {0: name}, "param_groups": [{"params": [0]}]} for name in "ab"]
    whole = {"state": STEPS, "param_groups": [DENSE]}
    expected = [
        {"state": {**STEPS, 0: name}, "param_groups": [group]}
        for name, group in zip("ab", (DENSE, EXPERT), strict=True)
    ]
    groups = [[OWN_DENSE], [OWN_EXPERT]]
    assert fit_chained_state({**whole, **dict(enumerate(requests))}, groups) == dict(enumerate(expected))
    half = {
        "optimizer": whole,
        "grad_scaler": 2,
        **{n: {"optimizer": request} for n, request in enumerate(requests)},
    }
    assert fit_chained_state(half, groups) == {
        number: {"optimizer": inner, "grad_scaler": 2} for number, inner in enumerate(expected)
    }
