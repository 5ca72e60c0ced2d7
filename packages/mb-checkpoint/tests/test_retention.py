"""Old checkpoints go, the one that the trackers name stays."""

import pytest
import whole
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint.layout import steps_in
from mb_checkpoint.locks import claimed, reading
from mb_checkpoint.retention import prune, steps_to_remove

STEPS = st.sets(st.integers(min_value=0, max_value=10**6), min_size=1)


@pytest.mark.parametrize(
    ("keep", "left"), [(-1, [40, 30, 20, 10]), (2, [40, 30]), (1, [40]), (9, [40, 30, 20, 10])]
)
def test_the_newest_stay(tmp_path, keep, left):
    for step in (10, 20, 30, 40):
        whole.save(tmp_path, step)
    done = prune(tmp_path, keep=keep, protected=40)
    assert list(steps_in(tmp_path)) == left
    assert len(done.removed) == 4 - len(left)
    assert done.kept_back == ()


def test_folders_newer_than_the_tracker_are_left_alone(tmp_path):
    for step in (10, 20, 30):
        whole.save(tmp_path, step)
    prune(tmp_path, keep=1, protected=20)
    assert list(steps_in(tmp_path)) == [30, 20]


def test_a_folder_that_resists_is_reported(tmp_path):
    for step in (10, 20):
        whole.save(tmp_path, step)
    (tmp_path / ".removing_iter_0000010").write_text("a file in the way")
    ((path, reason),) = prune(tmp_path, keep=1, protected=20).kept_back
    assert (path.name, "Not a directory" in reason) == ("iter_0000010", True)


def test_what_a_reader_or_a_tracker_uses_stays(tmp_path):
    for step in (10, 20, 30, 40):
        whole.save(tmp_path, step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")  # a person went back
    with reading(tmp_path / "iter_0000010"):
        done = prune(tmp_path, keep=1, protected=40)
    assert list(steps_in(tmp_path)) == [40, 20, 10]
    assert [(path.name, why) for path, why in done.kept_back] == [
        ("iter_0000010", "it is being read"),
        ("iter_0000020", "a tracker names it"),
    ]
    prune(tmp_path, keep=1, protected=40)
    assert list(steps_in(tmp_path)) == [40, 20]


def test_milestones_stay(tmp_path):
    for step in (10, 20, 30, 40, 50):
        whole.save(tmp_path, step)
    prune(tmp_path, keep=1, protected=50, retain_interval=20)
    assert list(steps_in(tmp_path)) == [50, 40, 20]


def test_a_dry_run_deletes_nothing(tmp_path):
    for step in (10, 20):
        whole.save(tmp_path, step)
    done = prune(tmp_path, keep=1, protected=20, dry_run=True)
    assert ([path.name for path in done.removed], list(steps_in(tmp_path))) == (["iter_0000010"], [20, 10])


def test_a_folder_is_claimed_unless_somebody_reads_it(tmp_path):
    with claimed(tmp_path) as free:
        assert free
    with reading(tmp_path), claimed(tmp_path) as free:
        assert not free


def test_a_folder_that_is_gone_is_read_without_a_lock(tmp_path):
    with reading(tmp_path / "gone"):
        pass


@given(STEPS, st.integers(min_value=1, max_value=5))
def test_never_the_protected_one_and_never_more_than_wanted(steps, keep):
    protected = sorted(steps)[len(steps) // 2]
    removed = steps_to_remove(list(steps), keep=keep, protected=protected)
    up_to_it = [step for step in steps if step <= protected]
    assert protected not in removed
    assert len(up_to_it) - len(removed) == min(keep, len(up_to_it))
    assert all(step < kept for step in removed for kept in set(up_to_it) - set(removed))


@pytest.mark.parametrize("keep", [0, -2])
def test_keeping_none_is_refused(keep):
    with pytest.raises(ValueError, match="would delete the newest one"):
        steps_to_remove([1, 2], keep=keep, protected=2)
