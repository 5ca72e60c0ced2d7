"""Which entries of a state dict belong to adapters."""

from mb_checkpoint.adapters import apply_peft_adapter_filter_to_state_dict, without


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
    rest = apply_peft_adapter_filter_to_state_dict(STATE, without(is_adapter))
    assert (rest["model"], rest["model12"]) == ({"linear.weight": 1}, {})
