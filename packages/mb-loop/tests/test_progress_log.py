import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from mb_loop import (
    ParallelSetupError,
    ProgressLogError,
    TrainState,
    append_to_progress_log,
    compute_throughputs_and_append_to_progress_log,
    get_start_time_from_progress_log,
)
from mb_loop.progress.progress_log import SAVED_LATER, STARTED

MORNING = datetime(2026, 1, 2, 8, 0, 0)


def config(folder, seq_length=1000):
    save = None if folder is None else str(folder)
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=save), model=SimpleNamespace(seq_length=seq_length)
    )


def start(cfg, minute, world_size=2):
    append_to_progress_log(
        cfg, STARTED, world_size=world_size, job_id="7", now=lambda: MORNING + timedelta(minutes=minute)
    )


def save(cfg, *, minute, began, operations, operations_at_start=0.0, asynchronous=False):
    state = SimpleNamespace(
        cfg=cfg,
        start_time=(MORNING + timedelta(minutes=began)).timestamp(),
        train_state=TrainState(step=minute, consumed_train_samples=30_000 * minute),
    )
    compute_throughputs_and_append_to_progress_log(
        state, operations, world_size=2, operations_at_start=operations_at_start, asynchronous=asynchronous,
        job_id="7", now=lambda: MORNING + timedelta(minutes=minute),
    )  # fmt: skip


def test_the_lines_of_two_jobs(tmp_path):
    cfg = config(tmp_path / "new")
    start(cfg, 0)
    save(cfg, minute=10, began=0, operations=1.2e16)
    start(cfg, 20)
    save(cfg, minute=30, began=20, operations=3.6e16, operations_at_start=1.2e16, asynchronous=True)
    assert (tmp_path / "new" / "progress.txt").read_text().splitlines() == [
        "2026-01-02 08:00:00\tJob ID: 7\t# GPUs: 2\tStarting job",
        "2026-01-02 08:10:00\tJob ID: 7\t# GPUs: 2\tSaved checkpoint\tIteration: 10\t"
        "Job throughput: 10.0 MODEL_TFLOP/s/GPU\tCumulative throughput: 10.0 MODEL_TFLOP/s/GPU\t"
        "Floating-point operations: 1.20e+16\tTokens (in billions): 0.30",
        "2026-01-02 08:20:00\tJob ID: 7\t# GPUs: 2\tStarting job",
        "2026-01-02 08:30:00\tJob ID: 7\t# GPUs: 2\tSaving async checkpoint\tIteration: 30\t"
        "Job throughput: 20.0 MODEL_TFLOP/s/GPU\tCumulative throughput: 10.0 MODEL_TFLOP/s/GPU\t"
        "Floating-point operations: 3.60e+16\tTokens (in billions): 0.90",
    ]


def test_the_start_is_that_of_the_first_job_since_the_number_of_ranks_changed(tmp_path):
    cfg = config(tmp_path)
    start(cfg, 0, world_size=2)
    save(cfg, minute=1, began=0, operations=1e16)
    start(cfg, 5, world_size=4)
    start(cfg, 10, world_size=2)
    start(cfg, 20, world_size=2)
    assert get_start_time_from_progress_log(cfg, world_size=2) == (MORNING + timedelta(minutes=10), 1e16)
    with pytest.raises(ProgressLogError, match="no line 'Starting job' of a job with 4 ranks"):
        get_start_time_from_progress_log(cfg, world_size=4)


def test_an_asynchronous_checkpoint_counts_once_it_is_complete(tmp_path):
    cfg = config(tmp_path)
    start(cfg, 0)
    save(cfg, minute=1, began=0, operations=1e16, asynchronous=True)
    start(cfg, 3, world_size=4)
    start(cfg, 4)
    assert get_start_time_from_progress_log(cfg, world_size=2)[1] == 0.0
    append_to_progress_log(cfg, f"{SAVED_LATER}\tIteration: 1", world_size=2)
    start(cfg, 5, world_size=4)
    start(cfg, 6)
    assert get_start_time_from_progress_log(cfg, world_size=2)[1] == 1e16


def test_truncated_and_malformed_lines_are_ignored(tmp_path):
    cfg, file = config(tmp_path), tmp_path / "progress.txt"
    file.write_bytes(b"notes of mine\n\xff\n\tJob ID: 7\t# GPUs: two\tStarting job\n")
    start(cfg, 0)
    save(cfg, minute=1, began=0, operations=1e16)
    start(cfg, 2, world_size=4)
    with file.open("a") as stream:
        stream.write("2026-01-02 08:03:00\tJob ID: 7\t# GPUs: 2\tSaved checkpoint\tIter")
    start(cfg, 4)
    assert file.read_text(errors="replace").splitlines()[-2:] == [
        "2026-01-02 08:03:00\tJob ID: 7\t# GPUs: 2\tSaved checkpoint\tIter",
        "2026-01-02 08:04:00\tJob ID: 7\t# GPUs: 2\tStarting job",
    ]
    assert get_start_time_from_progress_log(cfg, world_size=2) == (MORNING + timedelta(minutes=4), 1e16)


def test_messages_name_missing_settings_and_lines(tmp_path):
    with pytest.raises(ProgressLogError, match=r"checkpoint.save: is not set"):
        append_to_progress_log(config(None), STARTED, world_size=1)
    with pytest.raises(ProgressLogError, match=r"model.seq_length=None"):
        save(config(tmp_path, seq_length=None), minute=1, began=0, operations=1.0)
    with pytest.raises(ProgressLogError, match="Call append_to_progress_log"):
        save(config(tmp_path), minute=1, began=0, operations=1.0)


def seed_state(folder, *, asynchronous=False, consumed=30_000):
    cfg = config(folder)
    cfg.checkpoint.async_save = asynchronous
    counters = TrainState(step=10, consumed_train_samples=consumed)
    return SimpleNamespace(cfg=cfg, start_time=datetime.now().timestamp() - 100, train_state=counters)


def job_throughput(folder, line):
    field = (folder / "progress.txt").read_text().splitlines()[line].split("\t")[5]
    return float(field.removeprefix("Job throughput: ").split()[0])


@pytest.mark.parametrize(
    ("asynchronous", "text"), [(False, "Saved checkpoint"), (True, "Saving async checkpoint")]
)
def test_the_arguments_of_megatron_bridge_suffice(tmp_path, monkeypatch, asynchronous, text):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    state = seed_state(tmp_path, asynchronous=asynchronous)
    append_to_progress_log(state.cfg, STARTED)
    compute_throughputs_and_append_to_progress_log(state, 4e16)
    operations = get_start_time_from_progress_log(state.cfg)[1]
    line = (tmp_path / "progress.txt").read_text().splitlines()[1].split("\t")
    assert (operations, line[1:4]) == (0.0, ["Job ID: 77", "# GPUs: 4", text])
    assert job_throughput(tmp_path, 1) == pytest.approx(100, rel=0.1)


def test_the_throughput_of_a_resumed_job_counts_from_the_checkpoint_before_its_start(tmp_path):
    state = seed_state(tmp_path)
    append_to_progress_log(state.cfg, STARTED)
    compute_throughputs_and_append_to_progress_log(state, 4e16)
    append_to_progress_log(state.cfg, STARTED)
    compute_throughputs_and_append_to_progress_log(state, 6e16)
    assert job_throughput(tmp_path, 3) == pytest.approx(200, rel=0.1)


def test_every_rank_may_call_and_rank_0_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    state = seed_state(tmp_path)
    append_to_progress_log(state.cfg, STARTED)
    compute_throughputs_and_append_to_progress_log(state, 4e16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "text"), [("WORLD_SIZE", "0"), ("WORLD_SIZE", "four"), ("RANK", "-1")])
def test_a_launchers_variable_that_is_not_a_number_is_rejected(tmp_path, monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ParallelSetupError, match=f"{name}: '{text}' is not an integer of at least"):
        append_to_progress_log(config(tmp_path), STARTED)


def test_a_change_to_summer_time_is_no_hour_of_work(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # 2026-03-29: 2:00 becomes 3:00
    time.tzset()
    try:
        cfg, began = config(tmp_path), datetime(2026, 3, 29, 1, 0)
        append_to_progress_log(cfg, STARTED, world_size=1, job_id="7", now=lambda: began)
        state = SimpleNamespace(cfg=cfg, start_time=began.timestamp(), train_state=TrainState(step=1))
        compute_throughputs_and_append_to_progress_log(
            state, 3.6e16, world_size=1, operations_at_start=0.0, asynchronous=False, job_id="7",
            now=lambda: datetime(2026, 3, 29, 4, 0),
        )  # fmt: skip
        line = (tmp_path / "progress.txt").read_text().splitlines()[-1]
        # two hours: 3.6e16 operations in 7,200 s are 5 TFLOP/s
        assert "Job throughput: 5.0 MODEL_TFLOP/s/GPU\tCumulative throughput: 5.0 MODEL_TFLOP/s/GPU" in line
    finally:
        monkeypatch.undo()
        time.tzset()
