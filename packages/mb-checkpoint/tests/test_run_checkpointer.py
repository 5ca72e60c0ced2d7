"""Checkpointer of a run with a scripted checkpoint manager: outcomes, retries, log lines, loads."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from mb_checkpoint import LoadedCheckpoint, RunCheckpointer, SavedCheckpoint
from mb_checkpoint.context import FailedSave, ScheduledSave
from mb_checkpoint.errors import CheckpointSaveError, ManagerStateError
from mb_checkpoint.load.select import SkippedCheckpoint
from mb_schema.save_result import SaveResult

ROOT = Path("/checkpoints")


def saved(step):
    return SavedCheckpoint(path=ROOT / f"iter_{step:07d}", step=step, seconds=4.0, total_bytes=8)


def scheduled(step):
    return ScheduledSave(root=ROOT, step=step, seconds=0.1, staged_bytes=8)


def failed(step):
    return FailedSave(root=ROOT, step=step, message=f"no room at step {step}", seconds=1.0)


class Manager:
    """Manager that returns given results from saves and from polls of background saves."""

    def __init__(self, saves=(), polls=()):
        self.saves, self.polls = list(saves), list(polls)
        self.contexts, self.finalized = [], []

    def save(self, ctx, callback_manager=None):
        self.contexts.append(ctx)
        return self.saves.pop(0)

    def finalize_async_saves(self, state=None, blocking=False, terminate=False):
        self.finalized.append((blocking, terminate))
        return self.polls.pop(0) if self.polls else None


class ReservingManager(Manager):
    """Manager that keeps what memory is reserved for."""

    def __init__(self):
        super().__init__()
        self.reserved = []

    def reserve_memory(self, model, optimizer, groups=None):
        self.reserved.append((model, optimizer, groups))


def test_memory_is_reserved_once_when_the_optimizer_has_its_state():
    manager = ReservingManager()
    run = Run(manager, groups="groups")
    run.poll(1)
    assert manager.reserved == []
    run.poll(2)
    run.poll(3)
    assert manager.reserved == [(["chunk"], None, "groups")]


class Run:
    """Loop with a checkpointer: polls after each step, and repeats failed saves."""

    def __init__(self, manager, **bound):
        self.lines = []
        self.counters = SimpleNamespace(step=0, floating_point_operations_so_far=7.0)
        self.state = SimpleNamespace(train_state=self.counters, cfg=None)
        ticks = iter(range(1000))
        self.checkpointer = RunCheckpointer(
            manager,
            state=self.state,
            model=["chunk"],
            optimizer=None,
            scheduler=None,
            log=self.lines.append,
            clock=lambda: float(next(ticks)),
            **bound,
        )

    def save(self, step, *, non_persistent=False):
        self.counters.step = step
        return self.checkpointer.save(step, non_persistent=non_persistent)

    def poll(self, step, *, blocking=False):
        self.counters.step = step
        ended = self.checkpointer.poll(blocking=blocking)
        if self.checkpointer.retry_due(blocking=blocking):
            ended = [*ended, *self.save(step)]
            if blocking:
                ended += self.checkpointer.poll(blocking=True)
        return ended


def short(outcomes):
    """Return step and success of each outcome."""
    return [(each.step, each.written) for each in outcomes]


def test_a_save_is_recorded_and_logged():
    run = Run(Manager([saved(2)]))
    assert run.save(2) == [
        SaveResult(
            step=2,
            non_persistent=False,
            written=True,
            path=ROOT / "iter_0000002",
            seconds=1.0,
            write_seconds=4.0,
            total_bytes=8,
            message=saved(2).message,
        )
    ]
    assert run.lines == [f"  {saved(2).message}"]


def test_the_parts_of_the_run_are_bound_once():
    manager = Manager([saved(2), saved(4)])
    run = Run(manager, groups="groups", train_data_iterator="data", adapter_key_filter=str.isupper)
    run.save(2)
    run.counters.floating_point_operations_so_far = 9.0
    run.save(4, non_persistent=True)
    seen = [
        (each.model, each.pg_collection, each.train_data_iterator, each.adapter_key_filter)
        for each in manager.contexts
    ]
    assert seen == [(["chunk"], "groups", "data", str.isupper)] * 2
    counted = [
        (each.num_floating_point_operations_so_far, each.non_persistent_ckpt) for each in manager.contexts
    ]
    assert counted == [(7.0, False), (9.0, True)]


def test_a_background_save_ends_when_a_poll_finds_it_complete_or_before_the_next_save():
    manager = Manager([scheduled(2), scheduled(5), saved(7)], polls=[None, None, saved(2), None, failed(5)])
    run = Run(manager)
    waits = []
    ended = []
    for call in (
        lambda: run.save(2, non_persistent=True),
        lambda: run.poll(3),
        lambda: run.save(5),
        lambda: run.poll(6),
        lambda: run.poll(7),  # fails, and is repeated
    ):
        ended.append(call())
        waits.append(run.checkpointer.may_wait)
    assert [short(each) for each in ended] == [[], [], [(2, True)], [], [(5, False), (7, True)]]
    assert waits == [True, True, True, True, False]
    assert (ended[2][0].non_persistent, ended[2][0].seconds) == (True, 1.0)
    assert run.lines == [
        f"  {scheduled(2).message}",
        f"  {saved(2).message}",
        f"  {scheduled(5).message}",
        "error: no room at step 5",
        f"  {saved(7).message}",
    ]


def test_a_failure_is_retried_before_the_next_step_then_after_twice_as_many():
    run = Run(Manager([failed(2), failed(2), failed(4), failed(8), saved(16)]))
    attempts = [short(run.save(2))] + [short(run.poll(step)) for step in range(2, 17)]
    due = [step for step, each in zip([2, *range(2, 17)], attempts, strict=True) if each]
    assert due == [2, 2, 4, 8, 16]
    assert run.lines[:1] == ["error: no room at step 2"]
    assert short(run.poll(17)) == []


def test_a_success_resets_the_back_off():
    run = Run(Manager([failed(2), failed(2), saved(4), failed(6), saved(6)]))
    assert [short(each) for each in (run.save(2), run.poll(2), run.poll(3), run.poll(4))] == [
        [(2, False)],
        [(2, False)],
        [],
        [(4, True)],
    ]
    assert [short(each) for each in (run.save(6), run.poll(6))] == [[(6, False)], [(6, True)]]


def test_the_interval_between_retries_is_limited():
    run = Run(Manager([failed(1)] * 20))
    run.save(1)
    attempts = [step for step in range(1, 400) if run.poll(step)]
    assert attempts[-3:] == [255, 319, 383]


def test_a_failed_last_save_is_retried_once_and_then_an_error():
    run = Run(Manager([failed(20), failed(20)]))
    run.save(20)
    with pytest.raises(
        CheckpointSaveError,
        match=r"last step, 20: could not be written in two tries; the second ended with: no room at step 20",
    ):
        run.poll(20, blocking=True)
    assert run.lines == ["error: no room at step 20"]  # the error has the second one


def test_the_retry_at_the_end_of_the_run_waits_for_its_background_write():
    run = Run(Manager([scheduled(20), scheduled(20)], polls=[None, failed(20), None, failed(20)]))
    assert run.save(20) == []
    assert short(run.checkpointer.poll(blocking=True)) == [(20, False)]
    assert run.checkpointer.retry_due(blocking=True)
    assert short(run.save(20)) == [(20, False)]  # reported to the loop before the error
    with pytest.raises(CheckpointSaveError, match="two tries"):
        run.checkpointer.poll(blocking=True)
    assert [line for line in run.lines if line.startswith("error")] == ["error: no room at step 20"]


def test_the_retry_at_the_end_of_the_run_may_succeed():
    manager = Manager([failed(20), saved(20)])
    run = Run(manager)
    run.save(20)
    assert short(run.poll(20, blocking=True)) == [(20, True)]
    assert manager.finalized == [(True, False), (True, True), (True, False), (True, True)]


def test_a_custom_manager_that_returns_no_record_has_saved():
    run = Run(Manager([None]))
    assert run.save(3) == [SaveResult(step=3, non_persistent=False, written=True, seconds=1.0)]
    assert run.lines == []


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Reporting:
    """Manager with the record of its load, like the default one."""

    def __init__(self, finds):
        self.loaded, self.finds = None, finds

    def has_checkpoint(self):
        return False  # of checkpoints on the disks of the nodes, only the load knows

    def load(self, ctx):
        self.loaded = self.finds
        ctx.state.train_state.step = self.finds.step
        return self.finds.step, self.finds.floating_point_operations_so_far


class Probed:
    """Custom manager with `has_checkpoint`."""

    def __init__(self, step):
        self.step = step

    def has_checkpoint(self):
        return self.step is not None

    def load(self, ctx):
        ctx.state.train_state.step = self.step
        return self.step, 0.0


class Documented:
    """Custom manager without `has_checkpoint`, which the documented protocol lacks."""

    def __init__(self, returns, restores=0):
        self.returns, self.restores = returns, restores

    def load(self, ctx):
        ctx.state.train_state.step = self.restores
        return self.returns


NOTHING = LoadedCheckpoint(source="nothing")
RESUMED = LoadedCheckpoint(
    source="resumed",
    step=14,
    path=Path("/node"),
    skipped=(SkippedCheckpoint(path=Path("/c/iter_0000020"), reason="lacks .metadata"),),
    notes=("random states: other layout",),
)


@pytest.mark.parametrize(
    ("loaded", "answer"),
    [
        (NOTHING, False),
        (LoadedCheckpoint(source="resumed", step=7), True),
        (RESUMED, True),
        (LoadedCheckpoint(source="resumed", step=7, path=Path("/node"), from_local_disk=True), False),
    ],
    ids=["nothing", "custom manager", "shared folder", "local disk"],
)
def test_only_a_load_from_shared_storage_is_representative(loaded, answer):
    assert loaded.from_persistent_storage == answer


@pytest.mark.parametrize(
    ("manager", "loaded", "lines"),
    [
        (
            Reporting(RESUMED),
            RESUMED,
            [
                "skipped /c/iter_0000020: lacks .metadata",
                "random states: other layout",
                "resumed from /node at step 14",
            ],
        ),
        (
            Reporting(LoadedCheckpoint(source="weights", path=Path("/base"))),
            LoadedCheckpoint(source="weights", path=Path("/base")),
            ["weights from /base"],
        ),
        (Reporting(LoadedCheckpoint(source="nothing", notes=("none found",))), None, []),
        (Probed(7), LoadedCheckpoint(source="resumed", step=7), ["resumed at step 7"]),
        (Probed(0), LoadedCheckpoint(source="resumed", step=0), ["resumed at step 0"]),
        (Probed(None), NOTHING, []),
        (
            Documented((7, 2.0), 7),
            LoadedCheckpoint(source="resumed", step=7, floating_point_operations_so_far=2.0),
            ["resumed at step 7"],
        ),
        (Documented((0, 0)), NOTHING, []),
    ],
    ids=[
        "resumed",
        "weights",
        "nothing",
        "probed",
        "probed at 0",
        "probed, none",
        "documented",
        "documented, none",
    ],
)
def test_managers_that_report_always_load_and_others_are_probed_first(group, manager, loaded, lines):
    run = Run(manager)
    found = run.checkpointer.load()
    assert (found, run.lines) == (manager.loaded if loaded is None else loaded, lines)


def test_a_manager_that_loads_a_step_without_the_counters_is_rejected(group):
    with pytest.raises(
        ManagerStateError, match=r"Documented returned step 7 and left ctx\.state\.train_state at step 0"
    ):
        Run(Documented((7, 0))).checkpointer.load()


class Stream:
    """Stateful data loader."""

    def __init__(self, position):
        self.position = position

    def save_state(self):
        return self.position

    def restore_state(self, state):
        self.position = state


class Positioning(Reporting):
    """Manager that restores the position of the first iterator."""

    def load(self, ctx):
        self.folder = ctx.dataloader_load
        ctx.train_data_iterator[0].iterable.restore_state(5)
        return super().load(ctx)


def test_a_load_positions_the_iterators_of_all_chunks():
    chunks = [SimpleNamespace(iterable=Stream(0)) for _ in range(3)]
    manager = Positioning(RESUMED)
    Run(manager, train_data_iterator=chunks).checkpointer.load(dataloader_load="positions")
    assert [chunk.iterable.position for chunk in chunks] == [5, 5, 5]
    assert manager.folder == Path("positions")
