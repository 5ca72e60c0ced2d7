"""progress.txt: errors of its file do not end a run."""

from types import SimpleNamespace

from mb_checkpoint import SavedCheckpoint
from mb_trainer.progress import ProgressLog


def test_lines_that_cannot_be_written_are_said_and_the_run_goes_on(tmp_path):
    blocked = tmp_path / "checkpoints"
    (blocked / "progress.txt").mkdir(parents=True)  # opening a folder as a file raises an OSError
    said: list[str] = []
    counters = SimpleNamespace(step=5, consumed_train_samples=40, floating_point_operations_so_far=1e9)
    cfg = SimpleNamespace(checkpoint=SimpleNamespace(save=str(blocked)), model=SimpleNamespace(seq_length=32))
    state = SimpleNamespace(cfg=cfg, train_state=counters, start_time=0.0)
    log = ProgressLog(state, world_size=1, environment={}, say=said.append)
    saved = SavedCheckpoint(path=blocked / "iter_0000005", step=5, seconds=0.1)
    log.note(saved, later=True)
    log.note(saved, later=False)
    (blocked / "progress.txt").rmdir()
    log.note(saved, later=False)  # the file lacks the line of the start
    start = "warning: progress.txt lacks a line: "
    assert [line.startswith(start) for line in said] == [True] * 4
    assert ["Is a directory" in line for line in said] == [True, True, True, False]
    assert "no line 'Starting job'" in said[3]
