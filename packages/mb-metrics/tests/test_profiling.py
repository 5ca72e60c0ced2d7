import gzip
import json
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from mb_metrics import MemorySnapshot, NsysRange, ProfilingCallback, ProfilingConfig, StepRanges


class Notes:
    """A step profiler, a CUDA profiler and NVTX ranges in one, which stores its calls."""

    def __init__(self, warmup=0):
        self.warmup = warmup
        self.notes = []

    def begin(self, *, warmup, steps):
        self.notes.append(f"begin {warmup}+{steps}")

    def step_begin(self, step):
        self.notes.append(f"> {step}")

    def step_end(self, step):
        self.notes.append(f"< {step}")

    def end(self):
        self.notes.append("end")

    def start(self):
        self.notes.append("start")

    def stop(self):
        self.notes.append("stop")

    def range_push(self, name):
        self.notes.append(name)

    def range_pop(self):
        self.notes.append("pop")

    @contextmanager
    def markers(self):
        self.notes.append("markers on")
        yield
        self.notes.append("markers off")


WINDOW = ProfilingConfig(profile_step_start=2, profile_step_end=4)


def train(profiling, first, last):
    for step in range(first, last):
        profiling.step_begin(step)
        profiling.step_end(step + 1)
    profiling.close()


@pytest.mark.parametrize(
    ("warmup", "first", "last", "notes"),
    [
        (0, 0, 9, ["begin 0+2", "> 2", "< 3", "> 3", "< 4", "end"]),
        (1, 0, 9, ["begin 1+2", "> 1", "< 2", "> 2", "< 3", "> 3", "< 4", "end"]),
        (1, 3, 9, ["begin 0+1", "> 3", "< 4", "end"]),  # resumed inside the window
        (1, 0, 3, ["begin 1+2", "> 1", "< 2", "> 2", "< 3", "end"]),  # ended inside the window
        (1, 4, 9, []),
        (0, 0, 2, []),
    ],
)
def test_the_window_is_what_there_is_of_its_steps(warmup, first, last, notes):
    profiler = Notes(warmup)
    train(ProfilingCallback(WINDOW, [profiler], rank=0), first, last)
    assert profiler.notes == notes


@pytest.mark.parametrize(("ranks", "profiled"), [([], True), ([0], False), ([0, 3], True)])
def test_an_empty_list_of_ranks_is_every_rank(ranks, profiled):
    profiler = Notes()
    settings = ProfilingConfig(profile_step_start=0, profile_step_end=1, profile_ranks=ranks)
    train(ProfilingCallback(settings, [profiler], rank=3), 0, 1)
    assert bool(profiler.notes) == profiled


def test_as_a_callback_it_reads_the_train_state_and_ends_when_training_does():
    profiler = Notes()
    profiling = ProfilingCallback(WINDOW, [profiler], rank=0)
    context = SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=2)))
    profiling.on_train_step_start(context)
    profiling.on_train_end(context)  # for example after an exception in the step
    profiling.on_train_end(context)
    assert profiler.notes == ["begin 0+2", "> 2", "end"]


def test_a_profiler_that_fails_is_disabled_and_the_others_continue(caplog):
    class Broken(Notes):
        def begin(self, *, warmup, steps):
            raise OSError("no space left")

    class BreaksLater(Notes):
        def step_end(self, step):
            raise OSError("gone")

    broken, later, sound = Broken(), BreaksLater(), Notes()
    with caplog.at_level(logging.ERROR):
        train(ProfilingCallback(WINDOW, [broken, later, sound], rank=0), 0, 9)
    assert broken.notes == []
    assert later.notes == ["begin 0+2", "> 2"]
    assert sound.notes[-1] == "end"
    assert [record.message for record in caplog.records] == [
        "profiling: Broken failed and is disabled",
        "profiling: BreaksLater failed and is disabled",
    ]


def test_a_range_of_nsight_systems_starts_and_stops_the_collection_at_the_right_steps():
    cuda = Notes()
    train(ProfilingCallback(WINDOW, [NsysRange(cuda, cuda.markers), StepRanges(cuda)], rank=0), 0, 9)
    assert cuda.notes == [
        "start",
        "markers on",
        "training_step_2",
        "pop",
        "training_step_3",
        "pop",
        "markers off",
        "stop",
    ]


def test_a_step_that_fails_leaves_no_range_open():
    cuda = Notes()
    profiling = ProfilingCallback(WINDOW, [StepRanges(cuda)], rank=0)
    profiling.step_begin(2)
    profiling.close()
    assert cuda.notes == ["training_step_2", "pop"]


@dataclass
class Recorder:
    recording: bool = False
    written: int = 0

    def record(self):
        self.recording = True

    def write(self, path):
        path.write_text(str(self.recording))

    def on_out_of_memory(self, action):
        self.run_out = action


def test_the_memory_history_is_written_at_the_end_of_the_window_and_out_of_memory(tmp_path):
    recorder = Recorder()
    snapshot = MemorySnapshot(recorder, tmp_path / "new" / "snapshot.pickle", rank=3)
    snapshot.start()
    train(ProfilingCallback(WINDOW, [snapshot], rank=3), 0, 9)
    recorder.run_out()
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {
        "snapshot_3.pickle": "True",
        "snapshot_oom_rank-3.pickle": "True",
    }


def test_recording_starts_on_profiled_ranks_when_enabled(tmp_path):
    pytest.importorskip("torch")
    from mb_metrics import start_memory_history_recording as start

    settings = ProfilingConfig(
        record_memory_history=True, profile_ranks=[1], memory_snapshot_path=str(tmp_path / "s.pickle")
    )
    assert start(None) is None
    assert start(ProfilingConfig(), recorder=Recorder(), rank=1) is None
    assert start(settings, recorder=Recorder(), rank=0) is None
    recorder = Recorder()
    snapshot = start(settings, recorder=recorder, rank=1)
    assert recorder.recording
    assert snapshot.at_end == tmp_path / "s_1.pickle"


def test_without_a_gpu_what_needs_one_is_left_out_with_a_warning(tmp_path, caplog):
    torch = pytest.importorskip("torch")
    from mb_metrics import build_profiling, start_memory_history_recording

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    settings = ProfilingConfig(use_nsys_profiler=True, record_memory_history=True, profile_step_start=0)
    assert start_memory_history_recording(settings) is None
    train(build_profiling(settings, folder=tmp_path), 0, 1)
    assert [record.message.partition(":")[2] for record in caplog.records] == [
        " no GPU is available, so no memory history is recorded",
        " no GPU is available, so nothing is marked or collected for Nsight Systems",
    ]


@pytest.mark.parametrize(("first", "last", "steps"), [(0, 6, 2), (0, 3, 1), (3, 6, 1)])
def test_torchs_trace_has_the_steps_of_the_window_also_when_it_is_cut_short(tmp_path, first, last, steps):
    torch = pytest.importorskip("torch")
    from mb_metrics import build_profiling

    settings = ProfilingConfig(
        use_pytorch_profiler=True,
        profile_step_start=2,
        profile_step_end=4,
        pytorch_profiler_collect_shapes=True,
        pytorch_profiler_collect_chakra=True,
    )
    profiling = build_profiling(settings, folder=tmp_path, rank=5)
    for step in range(first, last):
        profiling.step_begin(step)
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiling.step_end(step + 1)
    profiling.close()
    with gzip.open(tmp_path / "torch_profile" / "rank-5.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"] == "aten::mm" for event in events) == steps
    assert (tmp_path / "chakra" / "rank-5.json.gz").exists()
