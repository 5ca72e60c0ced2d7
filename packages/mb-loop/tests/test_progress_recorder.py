"""The callback that writes progress.txt."""

from types import SimpleNamespace

import pytest

from mb_loop import ProgressRecorder, SaveResult, TrainState, progress_recorders


def context(step, *, non_persistent=False, written=True):
    return SimpleNamespace(save=SaveResult(step=step, non_persistent=non_persistent, written=written))


@pytest.fixture
def lines():
    return []


@pytest.fixture
def state(tmp_path):
    counters = TrainState(step=5, consumed_train_samples=40, floating_point_operations_so_far=10**9)
    cfg = SimpleNamespace(
        checkpoint=SimpleNamespace(save=str(tmp_path)), model=SimpleNamespace(seq_length=32)
    )
    return SimpleNamespace(cfg=cfg, train_state=counters, start_time=0.0)


@pytest.fixture
def recorder(state, lines):
    return ProgressRecorder(state, world_size=2, print_line=lines.append, job_id="7")


def texts(tmp_path):
    rows = (tmp_path / "progress.txt").read_text().splitlines()
    return ["\t".join(row.split("\t")[3:5]) for row in rows]


def test_each_persistent_checkpoint_has_a_line(tmp_path, state, recorder):
    recorder.on_train_start(SimpleNamespace(save=None))
    recorder.on_checkpoint_save(context(5))
    recorder.on_checkpoint_save(context(6, non_persistent=True))
    state.train_state.step = 8
    recorder.on_checkpoint_save(context(8))
    assert texts(tmp_path) == [
        "Starting job",
        "Saved checkpoint\tIteration: 5",
        "Saved checkpoint\tIteration: 8",
    ]


def test_a_save_in_the_background_has_a_line_at_its_start_and_one_when_it_is_complete(
    tmp_path, state, recorder
):
    recorder.on_train_start(SimpleNamespace(save=None))
    recorder.on_checkpoint_scheduled(context(5, written=False))
    recorder.on_checkpoint_scheduled(context(6, non_persistent=True, written=False))
    state.train_state.step = 7
    recorder.on_checkpoint_save(context(5))
    assert texts(tmp_path) == [
        "Starting job",
        "Saving async checkpoint\tIteration: 5",
        "Saved async checkpoint\tIteration: 5",
    ]


@pytest.mark.parametrize(
    ("enabled", "logging_rank", "recorders"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_the_logging_rank_writes_the_file_if_it_is_enabled(
    tmp_path, state, lines, enabled, logging_rank, recorders
):
    state.cfg.logger = SimpleNamespace(log_progress=enabled)
    world = SimpleNamespace(world_size=2, is_logging_rank=logging_rank)
    found = progress_recorders(state, world=world, print_line=lines.append)
    for recorder in found:
        recorder.on_train_start(SimpleNamespace(save=None))
    assert (len(found), (tmp_path / "progress.txt").exists()) == (recorders, recorders == 1)


def test_the_retry_of_a_failed_background_save_is_a_new_save(tmp_path, recorder):
    recorder.on_train_start(SimpleNamespace(save=None))
    recorder.on_checkpoint_scheduled(context(5, written=False))
    recorder.on_checkpoint_failed(context(5, written=False))
    recorder.on_checkpoint_save(context(5))
    assert texts(tmp_path)[1:] == [
        "Saving async checkpoint\tIteration: 5",
        "Saved checkpoint\tIteration: 5",
    ]


def test_lines_that_cannot_be_written_are_reported_and_training_continues(tmp_path, recorder, lines):
    (tmp_path / "progress.txt").mkdir()  # opening a folder as a file raises an OSError
    recorder.on_train_start(SimpleNamespace(save=None))
    recorder.on_checkpoint_scheduled(context(5, written=False))
    recorder.on_checkpoint_save(context(5))
    (tmp_path / "progress.txt").rmdir()
    recorder.on_checkpoint_save(context(5))  # the file lacks the line of the start
    assert [line.startswith("warning: progress.txt lacks a line: ") for line in lines] == [True] * 4
    assert ["Is a directory" in line for line in lines] == [True, True, True, False]
    assert "no line 'Starting job'" in lines[3]
