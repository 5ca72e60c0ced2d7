"""Counters on disk: exact, typed, never cached."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint import read_train_state
from mb_checkpoint.errors import TrainStateError
from mb_checkpoint.state.train_state import FLOPS, decode_train_state, encode_train_state

COUNTERS = {
    "step": 7,
    "consumed_train_samples": 56,
    "skipped_train_samples": 0,
    "consumed_valid_samples": 3,
    "do_train": True,
    "do_valid": False,
    "do_test": False,
}


def test_each_type_has_its_tensor(tmp_path):
    path = tmp_path / "train_state.pt"
    path.write_bytes(encode_train_state({**COUNTERS, FLOPS: 10**20}))
    stored = torch.load(path, weights_only=True)
    types = {name: (value.dtype, value.dim()) for name, value in stored.items()}
    assert types == {
        **{name: (torch.int64, 0) for name, value in COUNTERS.items() if type(value) is int},
        **{name: (torch.bool, 0) for name, value in COUNTERS.items() if type(value) is bool},
        FLOPS: (torch.float64, 0),
    }


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=2**60, max_value=10**27))
def test_counters_come_back_and_flops_keep_fifteen_digits(samples, flops):
    back = decode_train_state(
        encode_train_state({**COUNTERS, "consumed_train_samples": samples, FLOPS: flops}), source="test"
    )
    assert abs(back.pop(FLOPS) - flops) <= flops * 1e-15
    assert back == {**COUNTERS, "consumed_train_samples": samples}


def test_tensors_are_taken_as_counters():
    content = encode_train_state({"step": torch.tensor(4)})
    assert decode_train_state(content, source="test") == {"step": 4}


def test_a_rewritten_file_is_read_again(tmp_path):
    path = tmp_path / "train_state.pt"
    path.write_bytes(encode_train_state({"step": 1}))
    read_train_state(path)["step"] = 99
    path.write_bytes(encode_train_state({"step": 2}))
    assert read_train_state(path) == {"step": 2}


@pytest.mark.parametrize("flops", [float("nan"), float("inf")])
def test_flops_that_are_no_number_are_those_of_a_damaged_file(flops):
    with pytest.raises(TrainStateError, match=r"^test: cannot be read as a train state"):
        decode_train_state(encode_train_state({"step": 1, FLOPS: flops}), source="test")


@pytest.mark.parametrize("counter", [torch.zeros(2), 2**63, -(2**63) - 1])
def test_a_counter_that_has_no_place_in_64_bits_is_rejected(counter):
    with pytest.raises(TrainStateError, match=r"^train state: tokens is .* Leave it out of state_dict"):
        encode_train_state({"step": 1, "tokens": counter})


def test_flops_that_are_not_a_number_are_rejected():
    with pytest.raises(TrainStateError, match=f"{FLOPS} is None, a NoneType"):
        encode_train_state({"step": 1, FLOPS: None})


def test_a_counter_that_is_not_a_number_is_rejected():
    with pytest.raises(TrainStateError, match="history is \\[1, 2\\], a list"):
        encode_train_state({"step": 1, "history": [1, 2]})


def test_a_state_without_a_step_is_rejected():
    with pytest.raises(TrainStateError, match="needs 'step', has only \\['loss'\\]"):
        encode_train_state({"loss": 1.0})


@pytest.mark.parametrize("content", [b"", b"garbage", encode_train_state({"step": 3})[:100]])
def test_a_damaged_file_is_an_error_that_names_it(content):
    with pytest.raises(TrainStateError, match=r"x/train_state\.pt: cannot be read"):
        decode_train_state(content, source="x/train_state.pt")


def test_a_file_without_a_step_is_an_error(tmp_path):
    torch.save({"loss": torch.tensor(1.0)}, tmp_path / "train_state.pt")
    with pytest.raises(TrainStateError, match="KeyError"):
        read_train_state(tmp_path / "train_state.pt")
