"""Selection of adapter entries in a state dict."""

import pytest

from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.state.adapters import (
    all_but,
    apply_peft_adapter_filter_to_state_dict,
    reject_empty_selection,
)


def is_adapter(name):
    return "adapter" in name


STATE = {
    "model": {"linear.weight": 1, "linear.adapter.weight": 2, "linear.adapter._extra_state": 3},
    "model12": {"adapter": 4},
    "model_config": {"hidden": 5},
    "optimizer": {"weight": 6},
}


def test_only_model_sections_are_filtered_and_extra_states_go():
    assert apply_peft_adapter_filter_to_state_dict(STATE, is_adapter) == {
        **STATE,
        "model": {"linear.adapter.weight": 2},
    }


def test_the_rest_is_everything_else():
    rest = apply_peft_adapter_filter_to_state_dict(STATE, all_but(is_adapter))
    assert (rest["model"], rest["model12"]) == ({"linear.weight": 1}, {})


@pytest.mark.parametrize(
    ("keep", "accepted", "expected"),
    [
        (all_but(is_adapter), 0, "accepts every parameter of the model"),
        (all_but(is_adapter), 3, "accepts no parameter of the model"),
        (is_adapter, 0, "accepts no parameter of the model"),
    ],
)
def test_a_filter_that_leaves_nothing_is_rejected(keep, accepted, expected):
    with pytest.raises(CheckpointConfigError, match=f"^peft.is_adapter: {expected}"):
        reject_empty_selection(keep, accepted=accepted, total=3)


@pytest.mark.parametrize(("keep", "accepted"), [(None, 0), (is_adapter, 3), (all_but(is_adapter), 2)])
def test_a_filter_that_leaves_something_is_accepted(keep, accepted):
    reject_empty_selection(keep, accepted=accepted, total=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "base"}, "base has no effect without key_filter"),
        ({"key_filter": bool, "base_filter": bool}, "base_filter has no effect without base"),
    ],
)
def test_a_base_is_for_weights_that_a_filter_leaves(options, message):
    pytest.importorskip("megatron.core", reason="needs the mcore extra")
    from mb_checkpoint.load.load import load_model_weights

    with pytest.raises(CheckpointConfigError, match=message):
        load_model_weights("run", None, **options)
