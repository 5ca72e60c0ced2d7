"""Old checkpoints are deleted, and the one that the trackers name is kept."""

import errno
import pickle

import complete_checkpoint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint import CheckpointNotFoundError
from mb_checkpoint.formats.layout import steps_in
from mb_checkpoint.formats.manifest import Manifest, find_hash_mismatches, read_manifest
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.locks import WRITER_FILE, reader_lock, try_exclusive_lock, writer_lock
from mb_checkpoint.save.async_save import AsyncSave
from mb_checkpoint.save.commit import open_staging
from mb_checkpoint.save.commit_barrier import CommitBarrier
from mb_checkpoint.save.finalize import FinalizeJob, finalize_save
from mb_checkpoint.save.pruning import Pruning
from mb_checkpoint.save.retention import PruneJob, prune, steps_to_remove
from mb_checkpoint.save.worker import JobResult
from mb_checkpoint.save.writing import WrittenFiles, hash_files, write_result

STEPS = st.sets(st.integers(min_value=0, max_value=10**6), min_size=1)


@pytest.mark.parametrize(
    ("keep", "left"), [(-1, [40, 30, 20, 10]), (2, [40, 30]), (1, [40]), (9, [40, 30, 20, 10])]
)
def test_the_newest_are_kept(tmp_path, keep, left):
    for step in (10, 20, 30, 40):
        complete_checkpoint.save(tmp_path, step)
    done = prune(tmp_path, keep=keep, protected=40)
    assert list(steps_in(tmp_path)) == left
    assert len(done.removed) == 4 - len(left)
    assert done.not_removed == ()


def test_folders_newer_than_the_tracker_are_left_alone(tmp_path):
    for step in (10, 20, 30):
        complete_checkpoint.save(tmp_path, step)
    prune(tmp_path, keep=1, protected=20)
    assert list(steps_in(tmp_path)) == [30, 20]


def test_a_folder_that_cannot_be_deleted_is_reported(tmp_path):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    (tmp_path / ".removing_iter_0000010").write_text("a file in the way")
    ((path, reason),) = prune(tmp_path, keep=1, protected=20).not_removed
    assert (path.name, "Not a directory" in reason) == ("iter_0000010", True)


def test_checkpoints_that_a_reader_or_a_tracker_uses_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        complete_checkpoint.save(tmp_path, step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")  # a person went back
    with reader_lock(tmp_path / "iter_0000010"):
        done = prune(tmp_path, keep=1, protected=40)
    assert list(steps_in(tmp_path)) == [40, 20, 10]
    assert [(path.name, why) for path, why in done.not_removed] == [
        ("iter_0000010", "it is being read"),
        ("iter_0000020", "a tracker names it"),
    ]
    prune(tmp_path, keep=1, protected=40)
    assert list(steps_in(tmp_path)) == [40, 20]


def test_multiples_of_the_retain_interval_are_kept(tmp_path):
    for step in (10, 20, 30, 40, 50):
        complete_checkpoint.save(tmp_path, step)
    prune(tmp_path, keep=1, protected=50, retain_interval=20)
    assert list(steps_in(tmp_path)) == [50, 40, 20]


def saved(root, *steps):
    """Save checkpoints of these steps; return a cache and the list of the sizes it has read."""
    for step in steps:
        complete_checkpoint.save(root, step)
    sizes = []
    return VerifiedCache(progress=sizes.append), sizes


def test_damaged_ones_do_not_count_and_are_kept_until_enough_intact_ones_are_newer(tmp_path):
    saved(tmp_path, 10, 20, 30, 40)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000030")
    done = prune(tmp_path, keep=2, protected=40)
    assert list(steps_in(tmp_path)) == [40, 30, 20]
    ((path, reason),) = done.damaged
    assert (path.name, "differs from the manifest" in reason) == ("iter_0000030", True)
    saved(tmp_path, 50)
    assert prune(tmp_path, keep=2, protected=50).damaged == ()
    assert list(steps_in(tmp_path)) == [50, 40]


def test_the_newest_intact_one_is_kept_by_default(tmp_path):
    saved(tmp_path, 10, 20, 30)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000030")
    done = prune(tmp_path, keep=1)
    assert [path.name for path in done.removed] == ["iter_0000010"]
    assert [path.name for path, _ in done.damaged] == ["iter_0000030"]
    assert list(steps_in(tmp_path)) == [30, 20]


def test_nothing_is_deleted_if_nothing_is_intact(tmp_path):
    saved(tmp_path, 10, 20)
    for folder in steps_in(tmp_path).values():
        complete_checkpoint.flip_bit(folder)
    with pytest.raises(
        CheckpointNotFoundError, match=r"no intact checkpoint to keep, so none is deleted \(iter_0000020"
    ):
        prune(tmp_path, keep=1)
    assert (prune(tmp_path, keep=1, protected=20).removed, list(steps_in(tmp_path))) == ((), [20, 10])


def test_contents_are_read_once_and_only_before_a_deletion(tmp_path):
    verified, sizes = saved(tmp_path, 10, 20, 30)
    prune(tmp_path, keep=3, protected=30, verified=verified)
    assert sizes == []
    prune(tmp_path, keep=2, protected=30, verified=verified)
    assert len(sizes) > 0
    saved(tmp_path, 40)
    assert verified.problems(tmp_path / "iter_0000040") == []
    first = len(sizes)
    prune(tmp_path, keep=2, protected=40, verified=verified)
    assert (len(sizes), list(steps_in(tmp_path))) == (first, [40, 30])


def test_the_cache_ignores_the_result_of_a_replaced_folder(tmp_path):
    verified, _ = saved(tmp_path, 10)
    folder = tmp_path / "iter_0000010"
    assert verified.problems(folder) == []
    complete_checkpoint.flip_bit(folder)
    assert verified.problems(folder) == []
    saved(tmp_path, 11)
    (tmp_path / "iter_0000011" / "train_state.pt").replace(folder / "train_state.pt")
    (tmp_path / "iter_0000011" / "manifest.json").replace(folder / "manifest.json")
    assert verified.problems(folder)
    (folder / "manifest.json").write_text("{}")
    assert "is not a manifest" in verified.problems(folder)[0]


def test_damaged_checkpoints_are_also_read_once(tmp_path):
    verified, sizes = saved(tmp_path, 10, 20, 30)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000020")
    first = prune(tmp_path, keep=2, protected=30, verified=verified).damaged
    read = len(sizes)
    assert prune(tmp_path, keep=2, protected=30, verified=verified).damaged == first != ()
    assert (len(sizes), list(steps_in(tmp_path))) == (read, [30, 20, 10])


def test_cached_results_count_if_only_sizes_are_compared(tmp_path):
    verified, sizes = saved(tmp_path, 10, 20, 30, 40)
    verified.distrust(tmp_path / "iter_0000030", "has a flipped bit")
    done = prune(tmp_path, keep=2, protected=40, verified=verified, contents=False)
    assert [(path.name, reason) for path, reason in done.damaged] == [("iter_0000030", "has a flipped bit")]
    assert (sizes, list(steps_in(tmp_path))) == ([], [40, 30, 20])


def test_comparing_only_sizes_reads_no_contents(tmp_path):
    saved(tmp_path, 10, 20, 30)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000020")
    prune(tmp_path, keep=2, protected=30, contents=False)
    assert list(steps_in(tmp_path)) == [30, 20]


def test_a_dry_run_deletes_nothing(tmp_path):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    done = prune(tmp_path, keep=1, protected=20, dry_run=True)
    assert ([path.name for path in done.removed], list(steps_in(tmp_path))) == (["iter_0000010"], [20, 10])


def test_a_folder_is_locked_unless_a_process_reads_it(tmp_path):
    with try_exclusive_lock(tmp_path) as claim:
        assert claim == "acquired"
    with reader_lock(tmp_path), try_exclusive_lock(tmp_path) as claim:
        assert claim == "taken"


def test_without_locks_old_ones_are_deleted_and_unfinished_ones_are_kept(tmp_path, monkeypatch):
    saved(tmp_path, 10, 20)
    staging = open_staging(tmp_path, 30)
    monkeypatch.setattr("fcntl.flock", no_locks)
    done = prune(tmp_path, keep=1, unfinished=True)
    assert [path.name for path in done.removed] == ["iter_0000010"]
    ((path, reason),) = done.not_removed
    assert (path, staging.is_dir(), "this file system has no locks" in reason) == (staging, True, True)
    with writer_lock(tmp_path, run="here"):
        assert (tmp_path / WRITER_FILE).is_file()


def no_locks(_descriptor, _operation):
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_folder_that_is_gone_is_read_without_a_lock(tmp_path):
    with reader_lock(tmp_path / "gone"):
        pass


@given(STEPS, st.integers(min_value=1, max_value=5))
def test_the_protected_step_and_enough_others_are_kept(steps, keep):
    protected = sorted(steps)[len(steps) // 2]
    removed = steps_to_remove(list(steps), keep=keep, protected=protected)
    up_to_it = [step for step in steps if step <= protected]
    assert protected not in removed
    assert len(up_to_it) - len(removed) == min(keep, len(up_to_it))
    assert all(step < kept for step in removed for kept in set(up_to_it) - set(removed))


@pytest.mark.parametrize("spacing", [0, -2])
def test_an_interval_below_one_step_is_rejected(spacing):
    with pytest.raises(ValueError, match=f"save_retain_interval: {spacing} is not a spacing"):
        steps_to_remove([1, 2], keep=1, protected=2, retain_interval=spacing)


@pytest.mark.parametrize("keep", [0, -2])
def test_keeping_no_checkpoint_is_rejected(keep):
    with pytest.raises(ValueError, match="would delete the newest one"):
        steps_to_remove([1, 2], keep=keep, protected=2)


def job_of(root, step):
    """Return the commit of a save that keeps two checkpoints."""
    staging = complete_checkpoint.fill(open_staging(root, step), step)
    write_result(staging, 0, WrittenFiles())
    return FinalizeJob(
        root=root,
        staging=staging,
        world_size=1,
        index=None,
        facts=Manifest(step=step, files=()),
        pruning=pruning_of(root, step),
    )


def pruning_of(root, step, **options):
    """Return the deletion after a save that keeps two checkpoints."""
    return PruneJob(root=root, step=step, keep=2, retain_interval=None, **options)


def pruned(root, step, **options):
    """Delete old checkpoints as in the writer process; return the result, and its progress."""
    saved(root, step)
    sizes = []
    job = pickle.loads(pickle.dumps(pruning_of(root, step, **options)))
    return job.run(progress=sizes.append), sum(sizes)


class DyingWriter:
    """Writer process that runs a job, and dies before it returns the result."""

    def submit(self, job):
        self.job = job

    def result(self):
        if not hasattr(self, "job"):
            return JobResult()
        if isinstance(self.job, FinalizeJob):
            finalize_save(self.job)
        return JobResult(failure="the writer process died by SIGKILL")


def test_a_writer_that_dies_after_the_commit_has_saved(tmp_path):
    job = job_of(tmp_path, 10)
    barrier = CommitBarrier(None, rank=0, world_size=1, name="a")
    save = AsyncSave(job, began=0.0, is_rank_zero=True, writer=DyingWriter(), barrier=barrier)
    done = save.poll(blocking=True)
    assert (done.path, done.total_bytes) == (
        tmp_path / "iter_0000010",
        read_manifest(tmp_path / "iter_0000010").total_bytes,
    )


def test_a_writer_that_dies_while_it_deletes_is_reported(tmp_path):
    lines = []
    pruning = Pruning(lines.append)
    pruning.start(pruning_of(tmp_path, 10), DyingWriter())
    pruning.poll(blocking=False)
    reason = "the writer process died by SIGKILL. The next save tries again."
    assert lines == [f"could not delete old checkpoints in {tmp_path}: {reason}"]


class IdleWriter:
    """Writer process that runs a job when its result is read for the second time."""

    def submit(self, job):
        self.job, self.reads = job, 0

    def result(self):
        self.reads += 1
        return JobResult(pruned=self.job.run()) if self.reads == 2 else None


def test_old_checkpoints_are_deleted_after_the_save_and_damaged_ones_reported_once(tmp_path):
    saved(tmp_path, 10, 20, 30)
    verified, lines = VerifiedCache(), []
    verified.distrust(tmp_path / "iter_0000020", "has a flipped bit")
    pruning, writer = Pruning(lines.append), IdleWriter()
    for step in (30, 30, 40):
        if step == 40:
            saved(tmp_path, step)
        pruning.start(pruning_of(tmp_path, step, verified=verified), writer)
        before = sorted(path.name for path in tmp_path.glob("iter_*"))
        pruning.poll(blocking=False)
        assert sorted(path.name for path in tmp_path.glob("iter_*")) == before
        pruning.poll(blocking=True)
    assert lines == [f"checkpoint {tmp_path}/iter_0000020 does not count as one to keep: has a flipped bit"]
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000030", "iter_0000040"]


class NoWriter:
    """Writer process that cannot be started."""

    def submit(self, job):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_deletion_that_cannot_be_started_is_reported(tmp_path):
    lines = []
    Pruning(lines.append).start(pruning_of(tmp_path, 10), NoWriter())
    reason = "Resource temporarily unavailable. The next save tries again."
    assert lines == [f"could not delete old checkpoints in {tmp_path}: {reason}"]


def test_a_save_after_a_restart_reads_no_earlier_checkpoint(tmp_path):
    saved(tmp_path, 10, 20)
    done, read = pruned(tmp_path, 30)
    deleted = 1  # data file of the old checkpoint, which counts as progress
    assert ([path.name for path in done.removed], read) == (["iter_0000010"], deleted)


def test_a_save_in_another_process_knows_what_the_run_found_damaged(tmp_path):
    saved(tmp_path, 10, 20)
    verified = VerifiedCache()
    verified.distrust(tmp_path / "iter_0000020", "has a flipped bit")
    done, _ = pruned(tmp_path, 30, verified=verified)
    assert (done.removed, [path.name for path, _ in done.damaged]) == ((), ["iter_0000020"])


@pytest.mark.parametrize("ranks", [16, 64, 256])
def test_the_rank_that_commits_reads_no_data_file(tmp_path, ranks):
    """Files that another writer wrote are hashed by the rank whose they are."""
    staging = open_staging(tmp_path, 1)
    for name in ("train_state.pt", "run_config.yaml"):
        (staging / name).write_bytes(b"12345")
    for rank in range(ranks):
        (staging / f"__{rank}_0.distcp").write_bytes(b"x" * 1000)
        write_result(staging, rank, WrittenFiles(files=hash_files(staging, rank, algorithm="xxh3_128")))
    job = FinalizeJob(
        root=tmp_path,
        staging=staging,
        world_size=ranks,
        index=None,
        facts=Manifest(step=1, files=()),
        pruning=PruneJob(root=tmp_path, step=1, keep=-1, retain_interval=None),
    )
    read = []
    total_bytes = finalize_save(job, progress=read.append)
    assert (sum(read), total_bytes) == (10, 1000 * ranks + 10)
    saved_to = tmp_path / "iter_0000001"
    assert find_hash_mismatches(saved_to, read_manifest(saved_to).files) == []
