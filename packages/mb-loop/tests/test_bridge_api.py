"""Building blocks of an iteration, called separately."""

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop.loop_state import TrainSection  # noqa: E402


class Saves(mb_loop.Checkpointer):
    def __init__(self):
        self.lines = []

    def save(self, step, *, non_persistent):
        self.lines.append(f"{step} non-persistent" if non_persistent else f"{step}")
        return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

    def poll(self, *, blocking):
        return []


class Profile:
    """Fake profiler and NVTX context."""

    def __init__(self, log):
        self.log = log

    def stop(self):
        self.log.append("profile")

    def __exit__(self, *error):
        self.log.append("markers")


def test_periodic_work_runs_at_its_interval_only(monkeypatch):
    log = []
    monkeypatch.setattr(gc, "collect", lambda generation: None)
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: log.append("cuda profiler"))
    config = SimpleNamespace(
        train=TrainSection(train_sync_interval=2),
        logger=SimpleNamespace(log_interval=3),
        straggler=SimpleNamespace(log_straggler=True),
        profiling=SimpleNamespace(profile_step_end=4),
    )
    timer = SimpleNamespace(report=lambda operations, steps: log.append(f"{operations} in {steps} steps"))
    operations = 0.0
    for step in range(1, 7):
        operations = mb_loop.post_training_step_callbacks(
            [], operations + 1.5, timer, step, Profile(log), config, False, Profile(log),
            synchronize=lambda: log.append("wait"),
        )  # fmt: skip
    assert log == [
        "wait", "4.5 in 3 steps", "wait", "profile", "cuda profiler", "markers", "wait", "4.5 in 3 steps",
    ]  # fmt: skip
    assert operations == 0.0


def test_absent_sections_disable_their_work():
    config = SimpleNamespace(train=TrainSection(), straggler=None, profiling=None)
    assert mb_loop.post_training_step_callbacks([], 2.0, None, 1, None, config, False) == 2.0


def test_a_save_is_timed_and_stores_the_operations():
    saves, state = Saves(), mb_loop.LoopState.of(train_iters=9)
    state.train_state.step = 4
    seconds = mb_loop.save_checkpoint_and_time(
        state, [], None, None, 3e20, None, True, checkpointer=saves, clock=iter([1.0, 3.5]).__next__
    )
    assert (saves.lines, seconds) == (["4 non-persistent"], 2.5)
    assert state.train_state.floating_point_operations_so_far == 3 * 10**20


@pytest.mark.parametrize(
    ("settings", "keywords", "leave", "saved", "line"),
    [
        ({}, {}, False, [], None),
        ({"save_interval": 2}, {}, False, ["4"], None),
        ({"exit_interval": 4}, {}, True, ["4"], "exit_interval=4 divides it"),
        ({"exit_duration_in_mins": 1, "save_interval": 1}, {}, True, ["4"], "exit_duration_in_mins=1"),
        ({}, {"stop_requested": lambda step: "SIGUSR1 on rank 0"}, True, ["4"], "SIGUSR1 on rank 0"),
        ({}, {"straggler_stop_requested": lambda step: "rank 0 is slow"}, True, ["4"], "rank 0 is slow"),
    ],
)
def test_saves_and_exits_are_decided_together(settings, keywords, leave, saved, line):
    saves, lines, state = Saves(), [], mb_loop.LoopState.of(train_iters=9, **settings)
    state.train_state.step, state.start_time = 4, 0.0
    decided = mb_loop.checkpoint_and_decide_exit(
        state, [], None, None, 0.0, None, None,
        checkpointer=saves, clock=lambda: 61.0, write=lines.append, **keywords,
    )  # fmt: skip
    assert (decided, saves.lines, len(lines)) == (leave, saved, int(leave))
    assert line is None or line in lines[0]


def minimal_state(folder=None, *, save=None, log_progress=False, async_save=False, **train):
    """Return the fields of a global state that Megatron-Bridge's functions read."""
    return SimpleNamespace(
        train_state=mb_loop.TrainState(step=4, consumed_train_samples=4000),
        start_time=0.0,
        cfg=SimpleNamespace(
            train=TrainSection(train_iters=9, **train),
            checkpoint=SimpleNamespace(
                save=save, save_interval=None, non_persistent_save_interval=None, async_save=async_save
            ),
            ddp=SimpleNamespace(use_megatron_fsdp=False, overlap_param_gather=False),
            optimizer=SimpleNamespace(use_distributed_optimizer=False),
            model=SimpleNamespace(seq_length=1000),
            logger=SimpleNamespace(log_progress=log_progress),
        ),
    )


def test_the_arguments_of_megatron_bridge_suffice_to_save():
    saves, state = Saves(), minimal_state()
    mb_loop.save_checkpoint_and_time(
        state=state,
        model=[],
        optimizer=None,
        opt_param_scheduler=None,
        num_floating_point_operations_so_far=3e20,
        checkpointing_context={"checkpointer": saves},
        non_persistent_ckpt=False,
        train_data_iterator=None,
    )
    assert (saves.lines, state.train_state.floating_point_operations_so_far) == (["4"], 3 * 10**20)


@pytest.mark.parametrize(("received", "leave"), [([False, False], False), ([False, True], True)])
def test_the_arguments_of_megatron_bridge_suffice_to_decide(received, leave, capsys):
    saves, state = Saves(), minimal_state(exit_signal_handler=True)
    state.signal_handler = SimpleNamespace(signals_received=lambda: received)
    decided = mb_loop.checkpoint_and_decide_exit(
        state=state,
        model=[],
        optimizer=None,
        opt_param_scheduler=None,
        num_floating_point_operations_so_far=0.0,
        checkpointing_context={"checkpointer": saves},
        train_data_iterator=None,
    )
    assert (decided, saves.lines) == (leave, ["4"] * leave)
    assert capsys.readouterr().out == "stopped after step 4: SIGTERM on rank 1\n" * leave


def test_nothing_is_saved_without_a_directory():
    assert not mb_loop.checkpoint_and_decide_exit(minimal_state(), [], None, None, 0.0, {}, None)


@pytest.mark.parametrize(
    ("call", "settings", "context", "message"),
    [
        ("save_checkpoint_and_time", {}, {}, "there is none, but this function writes one"),
        ("checkpoint_and_decide_exit", {"save": "ck"}, {}, "checkpoint.save='ck' requires one"),
        ("checkpoint_and_decide_exit", {}, "ck", "is a str, but the checkpointer is read from a mapping"),
        ("checkpoint_and_decide_exit", {"exit_signal_handler": True}, {}, "the state has no signal_handler"),
    ],
)
def test_ignored_settings_are_rejected(call, settings, context, message):
    with pytest.raises(mb_loop.TrainSettingsError, match=message):
        getattr(mb_loop, call)(minimal_state(**settings), [], None, None, 0.0, context)


def test_two_checkpointers_are_rejected():
    with pytest.raises(mb_loop.TrainSettingsError, match="differs from the argument checkpointer"):
        mb_loop.save_checkpoint_and_time(
            minimal_state(), [], None, None, 0.0, {"checkpointer": Saves()}, checkpointer=Saves()
        )


@pytest.mark.parametrize(("non_persistent", "texts"), [(False, ["Saved checkpoint"]), (True, [])])
def test_a_persistent_save_adds_a_line_to_the_progress_log(tmp_path, non_persistent, texts):
    state = minimal_state(save=str(tmp_path), log_progress=True)
    mb_loop.append_to_progress_log(state.cfg, "Starting job")
    mb_loop.save_checkpoint_and_time(
        state, [], None, None, 3e20, {"checkpointer": Saves()}, non_persistent_ckpt=non_persistent
    )
    lines = (tmp_path / "progress.txt").read_text().splitlines()
    assert [line.split("\t")[3] for line in lines] == ["Starting job", *texts]
