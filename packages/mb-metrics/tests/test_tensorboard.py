import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mb_metrics import Metrics, TensorBoardSink


def scalars(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    # Sorted, because files of one second are read in the order of their names.
    return {
        tag: sorted((point.step, point.value) for point in events.Scalars(tag))
        for tag in events.Tags()["scalars"]
    }


def run(folder, steps, *, resume_step=None, scale=1.0):
    with Metrics([TensorBoardSink(folder, resume_step=resume_step)], log_interval=100) as metrics:
        for step in steps:
            metrics.record(step, {"lm loss": scale * step}, consumed_samples=8 * step)
            if step % 2 == 0:
                metrics.evaluation(step, {"lm loss": scale})


def test_tags_steps_and_the_twins_against_samples(tmp_path, clock):
    with Metrics([TensorBoardSink(tmp_path)], log_interval=2, clock=clock) as metrics:
        for step in (1, 2):
            clock.now += 1
            metrics.record(step, {"lm loss": 0.5, "mem/x": 3.0, "decoupled-learning-rate": 1.0}, samples=8)
        metrics.evaluation(2, {"lm loss": 0.0})
    assert scalars(tmp_path) == {
        "lm loss": [(1, 0.5), (2, 0.5)],
        "lm loss vs samples": [(8, 0.5), (16, 0.5)],
        "mem/x": [(1, 3.0), (2, 3.0)],
        "decoupled-learning-rate": [(1, 1.0), (2, 1.0)],
        "batch-size": [(1, 8.0), (2, 8.0)],
        "batch-size vs samples": [(8, 8.0), (16, 8.0)],
        "iteration-time": [(2, 1.0)],
        "world-size": [(2, 1.0)],
        "world-size vs samples": [(16, 1.0)],
        "throughput/batches_per_sec": [(2, 1.0)],
        "throughput/samples_per_sec": [(2, 8.0)],
        "throughput/device/batches_per_sec": [(2, 1.0)],
        "throughput/device/samples_per_sec": [(2, 8.0)],
        "throughput/global_batch_size": [(2, 8.0)],
        "lm loss validation": [(2, 0.0)],
        "lm loss validation vs samples": [(16, 0.0)],
        "lm loss validation ppl": [(2, 1.0)],
        "lm loss validation ppl vs samples": [(16, 1.0)],
    }


def test_resuming_supersedes_later_steps_on_both_axes(tmp_path):
    run(tmp_path, range(1, 8))
    run(tmp_path, range(5, 9), resume_step=4, scale=2.0)
    assert scalars(tmp_path)["lm loss"] == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 10.0), (6, 12.0), (7, 14.0), (8, 16.0),
    ]  # fmt: skip
    assert [x for x, _ in scalars(tmp_path)["lm loss vs samples"]] == [8, 16, 24, 32, 40, 48, 56, 64]
    assert scalars(tmp_path)["lm loss validation"] == [(2, 1.0), (4, 1.0), (6, 2.0), (8, 2.0)]


def test_resuming_removes_a_truncated_record(tmp_path):
    run(tmp_path, range(1, 4))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    run(tmp_path, range(3, 5), resume_step=2)
    assert [step for step, _ in scalars(tmp_path)["lm loss"]] == [1, 2, 3, 4]


def test_a_file_without_later_steps_is_not_modified(tmp_path):
    run(tmp_path, range(1, 4))
    (path,) = tmp_path.iterdir()
    before = path.stat()
    run(tmp_path, range(4, 5), resume_step=3)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(list(tmp_path.iterdir())) == 2


def test_files_of_other_writers_are_not_changed(tmp_path):
    """The writer of torch has steps of its own, here samples."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="needs torch")
    with tensorboard.SummaryWriter(str(tmp_path)) as host:
        for step in range(20):
            host.add_scalar("host/epoch", step, 100 * step)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    run(tmp_path, range(1, 4))
    run(tmp_path, range(1, 3), resume_step=0)
    assert {file: file.read_bytes() for file in before} == before
    assert len(scalars(tmp_path)["host/epoch"]) == 20
    assert [step for step, _ in scalars(tmp_path)["lm loss"]] == [1, 2]
