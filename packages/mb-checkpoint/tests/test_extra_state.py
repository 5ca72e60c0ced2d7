"""Layers with extra state read checkpoints of layers without, and vice versa."""

import extra_state_work as work
import pytest

NOTE = "8-bit scales: the checkpoint holds none for 1 modules; they start fresh"


@pytest.mark.parametrize(("value", "notes"), [([3.0], (NOTE,)), ([], ())], ids=["scales", "empty"])
def test_what_a_checkpoint_lacks_stays_as_it_is(one_rank, tmp_path, value, notes):
    section = {"save": str(tmp_path), "load": str(tmp_path)}
    one_rank.run(work.save, section, False)
    assert one_rank.run(work.load, section, True, value) == [(value, 1, notes)]
    assert one_rank.run(work.load_weights, section, True) == [1]


def test_what_it_holds_is_taken_and_left_where_nothing_keeps_it(one_rank, tmp_path):
    section = {"save": str(tmp_path), "load": str(tmp_path)}
    one_rank.run(work.save, section, True)
    assert one_rank.run(work.load, section, True, [3.0]) == [([7.0], 1, ())]
    assert one_rank.run(work.load, section, False, [3.0]) == [([3.0], 1, ())]


def test_each_of_grouped_experts_keeps_its_own(one_rank):
    assert one_rank.run(work.missing_state_of_grouped_experts) == [
        {"experts.linear_fc1._extra_state": 0, "experts.linear_fc1._extra_state1": 1}
    ]


def test_random_states_of_another_tracker_are_stored_as_tensors(one_rank):
    assert one_rank.run(work.states_of_another_tracker) == [["Tensor", "Tensor"]]


def test_scales_that_are_pickles_of_numbers_are_resumed_without_a_permission_that_remains(one_rank, tmp_path):
    section = {"save": str(tmp_path), "load": str(tmp_path)}
    one_rank.run(work.save_scales, section, None)
    assert one_rank.run(work.load_scales, section) == [([2.0, 8.0], (), [])]


def test_scales_declare_no_more_than_they_have(one_rank):
    ((sizes, reasons),) = one_rank.run(work.reasons_against_scales)
    assert (sizes, len(reasons)) == ([0, 0, 0], 3)
    assert all("more than 100 levels" in each for each in reasons)


def test_scales_that_name_code_start_fresh_unless_they_are_trusted(one_rank, tmp_path):
    section, made = {"save": str(tmp_path), "load": str(tmp_path)}, tmp_path / "made by a pickle"
    one_rank.run(work.save_scales, section, str(made))
    ((scales, notes, _),) = one_rank.run(work.load_scales, section)
    assert (scales, made.exists()) == ([1.0], False)
    assert [note.split(", and reading")[0] for note in notes] == [
        "8-bit scales: those of 1 modules are not only numbers (Refusing to unpickle disallowed class 'posix.mkdir')"
    ]
    assert one_rank.run(work.load_scales, {**section, "trust": True}) == [([2.0, 8.0], (), [])]
    assert made.exists()
