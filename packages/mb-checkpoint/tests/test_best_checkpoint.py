"""The best checkpoint by a validation metric is kept, linked and listed; the state of callbacks is stored."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import complete_checkpoint
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint import (
    CheckpointConfig,
    RunCheckpointer,
    SavedCheckpoint,
    TorchCheckpointer,
    best_checkpoint,
    fetch_checkpoint,
    list_checkpoints,
    prune,
    select_checkpoint,
    stateful_callbacks,
    upload_checkpoint,
)
from mb_checkpoint.errors import CheckpointConfigError, CheckpointLayoutError
from mb_checkpoint.formats.layout import steps_in
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.inspect.best import link_best, metric_entry, ranked
from mb_checkpoint.state.callback_states import callback_states, restore_callbacks
from mb_checkpoint.storage.checkpoints import list_stored
from mb_checkpoint.storage.storage import open_storage

VALUES = {10: 3.0, 20: 1.0, 30: 2.0, 40: 1.5}


def train(folder, values=VALUES, **options):
    """Save a checkpoint per step with its metric, two of which are kept; return the checkpointer's model."""
    model = torch.nn.Linear(1, 1)
    options = {"most_recent_k": 1, "best_metric": "loss", **options}
    with TorchCheckpointer(folder, {"model": model}, log=lambda _line: None, **options) as checkpointer:
        for step, value in values.items():
            with torch.no_grad():
                model.weight.fill_(step)
            checkpointer.save(step, **({} if value is None else {"loss": value}))


@pytest.mark.parametrize(
    ("mode", "left", "best"), [("min", [40, 20], 20), ("max", [40, 10], 10)], ids=["min", "max"]
)
def test_the_best_checkpoint_is_never_deleted(tmp_path, mode, left, best):
    train(tmp_path, best_metric_mode=mode)
    assert list(steps_in(tmp_path)) == left
    found = best_checkpoint(tmp_path)
    assert (found.step, found.metric, found.mode, found.value) == (best, "loss", mode, VALUES[best])
    assert (tmp_path / "best").resolve() == (tmp_path / f"iter_{best:07d}").resolve()
    assert select_checkpoint(tmp_path).step == 40  # a run resumes from the newest
    assert select_checkpoint(tmp_path / "best").step == best


def test_the_best_weights_are_loaded_by_the_name_of_the_link(tmp_path):
    train(tmp_path)
    model = torch.nn.Linear(1, 1)
    config = CheckpointConfig(load=str(tmp_path / "best"))
    assert TorchCheckpointer(config, {"model": model}, log=lambda _line: None).load() == 20
    assert model.weight.item() == 20.0


def test_the_listing_marks_the_best(tmp_path):
    train(tmp_path)
    assert {each.step: each.best for each in list_checkpoints(tmp_path)} == {40: None, 20: "loss 1"}


def test_a_storage_keeps_the_best_and_a_fetch_links_it(tmp_path):
    storage = open_storage(str(tmp_path / "storage"))
    train(tmp_path / "run", most_recent_k=-1)
    for step in VALUES:
        upload_checkpoint(tmp_path / "run" / f"iter_{step:07d}", storage, keep=1)
    assert [each.step for each in list_stored(storage)] == [40, 20]

    link = tmp_path / "copy" / "best"
    fetch_checkpoint(storage, tmp_path / "copy")
    assert not link.exists()  # the newest is not the best
    fetch_checkpoint(storage, tmp_path / "copy", step=20)
    assert link.resolve().name == "iter_0000020"
    assert select_checkpoint(link).step == 20


def test_checkpoints_without_a_number_are_never_the_best(tmp_path):
    train(tmp_path, {10: 2.0, 20: None, 30: math.nan, 40: -math.inf}, most_recent_k=-1)
    assert best_checkpoint(tmp_path).step == 10
    shutil.rmtree(tmp_path / "iter_0000010")
    assert best_checkpoint(tmp_path) is None


def test_without_the_setting_there_is_no_best(tmp_path):
    train(tmp_path, best_metric=None)
    assert (list(steps_in(tmp_path)), best_checkpoint(tmp_path)) == ([40], None)
    assert not (tmp_path / "best").exists()


def test_a_damaged_best_does_not_displace_the_next_one(tmp_path):
    for step, value in VALUES.items():
        content = metric_entry("loss", "min", value)
        complete_checkpoint.save(tmp_path, step, content=content)
    (tmp_path / "iter_0000020" / "metadata.json").write_bytes(b"{}")
    done = prune(tmp_path, keep=1, protected=40)
    assert list(steps_in(tmp_path)) == [40]  # 40 is the best of the intact ones
    assert done.kept_best is None
    complete_checkpoint.save(tmp_path, 50, content=metric_entry("loss", "min", 9.0))
    assert prune(tmp_path, keep=1, protected=50).kept_best == tmp_path / "iter_0000040"


def test_a_run_that_went_back_does_not_link_a_step_of_the_other_branch(tmp_path):
    for step, value in {10: 2.0, 20: 1.0, 15: 3.0}.items():
        complete_checkpoint.save(tmp_path, step, content=metric_entry("loss", "min", value))
    link_best(tmp_path, up_to=15)
    assert (tmp_path / "best").readlink().name == "iter_0000010"


def test_a_folder_of_that_name_is_left_alone(tmp_path):
    (tmp_path / "best").mkdir()
    train(tmp_path)
    assert (tmp_path / "best").is_dir()
    assert not (tmp_path / "best").is_symlink()


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.sampled_from(["min", "max"])
)
def test_the_order_is_that_of_the_values_and_the_first_of_equal_ones_counts(values, mode):
    manifests = {
        f"iter_{step}": Manifest(step=step, files=(), content=metric_entry("loss", mode, value))
        for step, value in enumerate(values)
    }
    wanted = min(values) if mode == "min" else max(values)
    assert ranked(manifests)[0].step == values.index(wanted)


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {"name": 1, "mode": "min", "value": 1.0},
        {"name": "a", "mode": "low", "value": 1.0},
        {"name": "a", "mode": "min", "value": "1"},
        {"name": "a", "mode": "min", "value": math.nan},
    ],
)
def test_an_entry_of_another_form_is_ignored(entry):
    assert ranked({"a": Manifest(step=1, files=(), content={"best_metric": entry})}) == []


class Manager:
    """Manager that keeps the contexts of saves."""

    def __init__(self):
        self.contexts = []

    def save(self, ctx, callback_manager=None):
        self.contexts.append(ctx)
        return SavedCheckpoint(path=Path("/c/iter"), step=ctx.state.train_state.step, seconds=1.0)

    def finalize_async_saves(self, state=None, blocking=False, terminate=False):
        return None


def evaluated(**losses):
    return SimpleNamespace(total_loss_dict=losses)


def test_a_save_has_the_metric_of_an_evaluation_at_its_step():
    counters = SimpleNamespace(step=4, floating_point_operations_so_far=0)
    manager = Manager()
    state = SimpleNamespace(train_state=counters, cfg=None)
    run = RunCheckpointer(manager, state=state, model=[], optimizer=None, scheduler=None, best_metric="loss")
    run.on_eval_end(evaluated(loss=2.0))
    run.save(4, non_persistent=True)
    run.save(4, non_persistent=False)
    counters.step = 6
    run.on_eval_end(SimpleNamespace(total_loss_dict=None))  # stopped early
    run.save(6, non_persistent=False)
    assert [ctx.best_metric for ctx in manager.contexts] == [None, 2.0, None]


def test_an_unknown_metric_is_named():
    state = SimpleNamespace(train_state=SimpleNamespace(step=1), cfg=None)
    run = RunCheckpointer(Manager(), state=state, model=[], optimizer=None, scheduler=None, best_metric="acc")
    with pytest.raises(
        CheckpointConfigError, match=r"checkpoint.best_metric: .* no metric 'acc' \(it has 'loss'\)"
    ):
        run.on_eval_end(evaluated(loss=2.0))


@pytest.mark.parametrize(("metric", "valid"), [("loss", True), (None, False)])
def test_a_run_whose_best_checkpoint_is_known_or_not_wanted_starts(metric, valid):
    state = SimpleNamespace(train_state=SimpleNamespace(step=0, do_valid=valid), cfg=None)
    run = RunCheckpointer(
        Manager(), state=state, model=[], optimizer=None, scheduler=None, best_metric=metric
    )
    run.on_train_start(SimpleNamespace(state=state))


def test_a_run_without_validation_data_has_no_best_checkpoint():
    state = SimpleNamespace(train_state=SimpleNamespace(step=0, do_valid=False), cfg=None)
    run = RunCheckpointer(
        Manager(), state=state, model=[], optimizer=None, scheduler=None, best_metric="loss"
    )
    with pytest.raises(
        CheckpointConfigError, match=r"checkpoint.best_metric: the run has no validation data"
    ):
        run.on_train_start(SimpleNamespace(state=state))


class Counting:
    """Callback with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


def test_states_of_callbacks_are_stored_by_name_and_restored():
    saved = stateful_callbacks([Counting({"a": [1, 2.5, None]}), object(), Counting({"b": {"c": "d"}})])
    assert list(saved) == ["Counting", "Counting 2"]
    fresh = stateful_callbacks([Counting({}), Counting({}), Counting({"left": True})])
    notes = restore_callbacks(fresh, callback_states(saved))
    assert [each.state for each in fresh.values()] == [
        {"a": [1, 2.5, None]},
        {"b": {"c": "d"}},
        {"left": True},
    ]
    assert notes == ["callback Counting 3: the checkpoint holds no state of it; it starts fresh"]


def test_a_state_that_would_have_to_be_unpickled_is_rejected():
    with pytest.raises(CheckpointLayoutError, match=r"callback Counting\['a'\]\[0\]: .* of type Tensor"):
        callback_states({"Counting": Counting({"a": [torch.ones(1)]})})
