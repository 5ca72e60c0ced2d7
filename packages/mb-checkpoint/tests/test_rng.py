"""Random number generators continue at their restored state."""

import random

import pytest
import torch

from mb_checkpoint.state.rng import collect_rng_state, restore_rng_state, rng_digest

numpy = pytest.importorskip("numpy")


class Tracker:
    """Tracker with one named state."""

    def __init__(self):
        self.states = {"model-parallel-rng": torch.Generator().manual_seed(5).get_state()}

    def get_states(self):
        return dict(self.states)

    def set_states(self, states):
        self.states = states


def draws():
    return random.random(), float(numpy.random.rand()), torch.rand(3).tolist()


def test_the_same_numbers_follow_a_restored_state():
    tracker = Tracker()
    state = collect_rng_state(tracker)
    expected = draws()
    tracker.states = {}
    restore_rng_state(state, tracker)
    assert draws() == expected
    assert torch.equal(tracker.states["model-parallel-rng"], Tracker().states["model-parallel-rng"])


def test_a_state_survives_a_file_without_trusting_pickles(tmp_path):
    state = collect_rng_state(Tracker())
    torch.save(state, tmp_path / "rng.pt")
    expected = draws()
    restore_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True), Tracker())
    assert draws() == expected


def test_a_state_of_megatron_lm_has_an_array_where_this_package_stores_a_list():
    theirs = {**collect_rng_state(Tracker()), "np_rng_state": numpy.random.get_state()}
    expected = draws()
    restore_rng_state(theirs, Tracker())
    assert draws() == expected


def test_different_states_have_different_digests():
    before = collect_rng_state()
    assert rng_digest(before) == rng_digest(collect_rng_state())
    random.random()
    assert rng_digest(before) != rng_digest(collect_rng_state())


def test_a_state_without_generators_is_rejected():
    with pytest.raises(KeyError, match="random_rng_state"):
        restore_rng_state({})
