"""Checkpoints of PyTorch loops without Megatron Core: exact resumes, resharding, kills, and rejected states."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rank_work
import torch
from script_ranks import ScriptRanks
from torch import nn

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointNotFoundError,
    TorchCheckpointer,
    describe_checkpoint,
    list_checkpoints,
    read_train_state,
    verify_checkpoint,
)
from mb_checkpoint.context import FailedSave, ScheduledSave
from mb_checkpoint.errors import (
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointSaveError,
    CheckpointShapeError,
    NoIntactCheckpointError,
)

EXAMPLE = Path(__file__).parents[1] / "examples" / "fsdp2_loop.py"
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "capturable": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters),
}


def build(optimizer="adamw", *, seed=0):
    """Return a run: a network with buffers, its optimizer and scheduler."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 8))
    made = OPTIMIZERS[optimizer](model.parameters())
    return {"model": model, "optimizer": made, "scheduler": torch.optim.lr_scheduler.StepLR(made, 3)}


def train(run, steps):
    losses = []
    for _ in range(steps):
        batch = torch.randn(4, 8)
        loss = (run["model"](batch) - batch).square().mean()
        loss.backward()
        run["optimizer"].step()
        run["scheduler"].step()
        run["optimizer"].zero_grad()
        losses.append(loss.item())
    return losses


def checkpointer(folder, run, **options):
    return TorchCheckpointer(folder, run, log=lambda _line: None, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, optimizer):
    run = build(optimizer)
    train(run, 4)
    saved = checkpointer(tmp_path, run).save(4, tokens=123)
    after = train(run, 4)
    again = build(optimizer, seed=1)
    loaded = checkpointer(tmp_path, again)
    assert (loaded.load(), loaded.loaded.path) == (4, saved.path)
    assert train(again, 4) == after
    assert read_train_state(saved.path / "train_state.pt") == {"step": 4, "tokens": 123}
    assert verify_checkpoint(saved.path) == {saved.path: []}


def test_wrappers_are_not_part_of_the_names(tmp_path):
    run = build()
    train(run, 2)
    checkpointer(tmp_path, run).save(2)
    other = build(seed=1)
    compiled = torch.compile(other["model"], backend="eager")
    checkpointer(tmp_path, {**other, "model": compiled}).load()
    assert all(
        torch.equal(*pair)
        for pair in zip(run["model"].parameters(), other["model"].parameters(), strict=True)
    )


@pytest.fixture
def gloo():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("gloo")
def test_wrappers_within_wrappers_are_not_part_of_the_names(tmp_path):
    def wrap(kind):
        plain = nn.Sequential(nn.Linear(2, 2), nn.Sequential())
        replicated = nn.parallel.DistributedDataParallel
        wrapped = {
            "plain": lambda: plain,
            "compiled": lambda: torch.compile(replicated(plain), backend="eager"),
            "replicated": lambda: replicated(torch.compile(plain, backend="eager")),
            "DataParallel": lambda: nn.DataParallel(plain),
        }
        return wrapped[kind](), plain

    for number, kind in enumerate(("plain", "compiled", "replicated", "DataParallel")):
        run, own = wrap(kind)
        checkpointer(tmp_path / kind, {"model": run}).save(number)
        for other in ("plain", "compiled", "replicated", "DataParallel"):
            again, plain = wrap(other)
            assert checkpointer(tmp_path / kind, {"model": again}).load() == number, (kind, other)
            assert torch.equal(plain[0].weight, own[0].weight)
    inner, within = nn.ModuleDict(), nn.Linear(2, 2)
    inner["module"] = nn.parallel.DistributedDataParallel(within)
    checkpointer(tmp_path / "inner", {"model": inner}).save(1)
    plain = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert checkpointer(tmp_path / "inner", {"model": plain}).load() == 1
    assert torch.equal(plain["module"].weight, within.weight)


def test_a_save_in_the_background_has_the_state_of_its_step(tmp_path):
    run = build()
    train(run, 2)
    with checkpointer(tmp_path, run, async_save=True) as saves:
        assert isinstance(saves.save(2), ScheduledSave)
        after = train(run, 3)
        assert saves.poll(blocking=True).step == 2
        assert saves.poll() is None
    again = build(seed=1)
    assert checkpointer(tmp_path, again).load() == 2
    assert train(again, 3) == after


def test_old_checkpoints_are_deleted_and_a_damaged_one_is_skipped(tmp_path):
    run = build()
    saves = checkpointer(tmp_path, run, most_recent_k=2)
    for step in range(1, 5):
        saves.save(step)
    assert [each.step for each in list_checkpoints(tmp_path)] == [4, 3]
    (data,) = (tmp_path / "iter_0000004").glob("*.distcp")
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    lines = []
    again = TorchCheckpointer(tmp_path, build(), log=lines.append)
    assert again.load() == 3
    assert any("iter_0000004" in line and "differs from the manifest" in line for line in lines)
    assert TorchCheckpointer(tmp_path, build(), log=lines.append, ckpt_step=3).load() == 3


def test_damage_anywhere_leads_to_the_previous_checkpoint_and_leaves_nothing_of_the_damaged_one(tmp_path):
    run = build()
    saves = checkpointer(tmp_path, run)
    train(run, 1)
    saves.save(1)
    expected = checkpoint_state(run)
    train(run, 1)
    saves.save(2)
    (data,) = (tmp_path / "iter_0000002").glob("*.distcp")
    content = data.read_bytes()
    for at in range(0, len(content), len(content) // 20):
        data.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        again = build(seed=1)
        resumed = checkpointer(tmp_path, again)
        assert (at, resumed.load()) == (at, 1)
        assert [each.reason for each in resumed.loaded.skipped] == [
            f"{data.name} differs from the manifest (checksum)"
        ]
        assert checkpoint_state(again) == expected


def checkpoint_state(run):
    """Return the state of a run as text."""
    return repr({name: each.state_dict() for name, each in run.items()})


def test_a_load_reads_each_byte_of_tensors_once(tmp_path):
    run = build()
    run["model"].append(nn.Linear(2000, 1000))
    saves = checkpointer(tmp_path, {"model": run["model"]})
    path = saves.save(1).path
    stored = sum(file.stat().st_size for file in path.iterdir())
    saves.load()  # with imports
    before = int(Path("/proc/self/io").read_text().split()[1])
    saves.load()
    found = int(Path("/proc/self/io").read_text().split()[1]) - before
    assert stored <= found < 1.05 * stored


def test_without_a_checkpoint_a_run_starts_at_zero(tmp_path):
    run = checkpointer(tmp_path / "none", build())
    assert (run.load(), run.loaded.source) == (0, "nothing")
    with pytest.raises(CheckpointNotFoundError, match="exit_on_missing_checkpoint"):
        checkpointer(tmp_path / "none", build(), exit_on_missing_checkpoint=True).load()


def test_a_failed_save_leaves_the_earlier_one(tmp_path, monkeypatch):
    run = build()
    saves = checkpointer(tmp_path, run)
    saves.save(1)

    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mb_checkpoint.save.plan.write_files", full)
    failed = saves.save(2)
    assert isinstance(failed, FailedSave)
    assert "No space left on device" in failed.message
    with pytest.raises(CheckpointSaveError, match="No space left"):
        checkpointer(tmp_path, run, on_save_error="raise").save(2)
    monkeypatch.undo()
    assert checkpointer(tmp_path, build()).load() == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["iter_0000001"]


def test_a_run_with_other_objects_or_shapes_is_rejected_before_anything_changes(tmp_path):
    checkpointer(tmp_path, build()).save(1)
    run = build(seed=1)
    wider = {"model": nn.Sequential(nn.Linear(8, 17)), "optimizer": None}
    wider["optimizer"] = torch.optim.AdamW(wider["model"].parameters())
    fewer = torch.optim.AdamW([*run["model"].parameters()][:2])
    before = [parameter.clone() for parameter in run["model"].parameters()]
    for state, message in (
        (wider, r"model\.0\.weight: \[16, 8\] in the checkpoint, \[17, 8\] in the run"),
        ({**run, "sampler": run["scheduler"]}, "sampler: not in the checkpoint"),
        ({"model": run["model"]}, "optimizer.groups: only in the checkpoint"),
        ({**run, "optimizer": fewer}, "the parameter groups of 'optimizer'"),
    ):
        with pytest.raises(CheckpointShapeError, match=message):
            checkpointer(tmp_path, state).load()
    assert all(map(torch.equal, before, run["model"].parameters()))
    partial = checkpointer(tmp_path, {"model": run["model"], "sampler": run["scheduler"]})
    assert partial.load(strict=False) == 1
    assert "left unchanged: sampler: not in the checkpoint" in partial.loaded.notes


def test_the_random_states_of_megatron_are_restored(one_rank, tmp_path):
    ((before, after),) = one_rank.run(rank_work.draw_after_a_plain_load, str(tmp_path))
    assert before == after


class WithExtra(nn.Linear):
    """Layer with an extra state."""

    extra = 0

    def get_extra_state(self):
        return {"extra": self.extra}

    def set_extra_state(self, state):
        self.extra = state["extra"]


def test_extra_states_of_modules_are_restored(tmp_path):
    model = WithExtra(2, 2)
    model.extra = 7
    checkpointer(tmp_path, {"model": model}).save(1)
    again = WithExtra(2, 2)
    checkpointer(tmp_path, {"model": again}).load()
    assert (again.extra, again.weight.tolist()) == (7, model.weight.tolist())


class TensorExtra(nn.Linear):
    """Linear layer whose extra state is a tensor, as those of Transformer Engine are."""

    def __init__(self, extra):
        super().__init__(2, 2)
        self.extra = extra

    def get_extra_state(self):
        return None if self.extra is None else torch.tensor(self.extra, dtype=torch.uint8)

    def set_extra_state(self, state):
        self.extra = None if state is None else state.tolist()


class Fused(nn.Module):
    """Weight that the state dict divides into two copies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2))
        self._register_state_dict_hook(self._divide)
        self.register_load_state_dict_pre_hook(self._join)

    @staticmethod
    def _divide(module, state, prefix, _metadata):
        whole = state.pop(f"{prefix}weight")
        state.update({f"{prefix}q": whole[:2].clone(), f"{prefix}k": whole[2:].clone()})

    @staticmethod
    def _join(module, state, prefix, *_others):
        state[f"{prefix}weight"] = torch.cat([state.pop(f"{prefix}q"), state.pop(f"{prefix}k")])


class Cached(nn.Linear):
    """Layer that derives a value from its weight when a state is loaded, and has an empty buffer."""

    def __init__(self):
        super().__init__(2, 2)
        self.total = None
        self.register_buffer("cache", torch.empty(0, 4))
        self.register_load_state_dict_post_hook(lambda module, _keys: module.derive())

    def derive(self):
        self.total = self.weight.sum().item()


class Empty(nn.Linear):
    """Layer with a parameter without elements."""

    def __init__(self):
        super().__init__(2, 2)
        self.none = nn.Parameter(torch.empty(0, 3))


def state_of(module):
    """Return everything of a module that a load may change."""
    values = {name: value.tolist() for name, value in module.named_parameters()}
    return values | {name: getattr(module, name, None) for name in ("extra", "total")}


MODULES = {
    "extra state of another value": (lambda: TensorExtra([1, 2, 3]), lambda: TensorExtra([0, 0, 0])),
    "extra state of another size": (lambda: TensorExtra([1, 2, 3]), lambda: TensorExtra([0])),
    "extra state where there is none yet": (lambda: TensorExtra([1, 2, 3]), lambda: TensorExtra(None)),
    "no extra state where there is one": (lambda: TensorExtra(None), lambda: TensorExtra([1])),
    "empty extra state": (lambda: TensorExtra([]), lambda: TensorExtra([1])),
    "copies": (Fused, Fused),
    "hook after the load, and an empty buffer": (Cached, Cached),
    "empty parameter": (Empty, Empty),
    "several in one": (
        lambda: nn.Sequential(Fused(), TensorExtra([5]), Cached()),
        lambda: nn.Sequential(Fused(), TensorExtra([]), Cached()),
    ),
}


@pytest.mark.parametrize("case", MODULES)
@pytest.mark.parametrize("background", [False, True])
def test_a_module_is_restored_as_torch_restores_it(tmp_path, case, background):
    build_saved, build_fresh = MODULES[case]
    saved, again, by_torch = build_saved(), build_fresh(), build_fresh()
    torch.save(saved.state_dict(), tmp_path / "saved.pt")
    by_torch.load_state_dict(torch.load(tmp_path / "saved.pt"))
    with checkpointer(tmp_path / "runs", {"model": saved}, async_save=background) as saves:
        saves.save(1)
    assert checkpointer(tmp_path / "runs", {"model": again}).load() == 1
    for found, expected in zip(again.modules(), by_torch.modules(), strict=True):
        assert state_of(found) == state_of(expected)
    assert state_of(again) != state_of(build_fresh())


def test_an_optimizer_of_an_empty_parameter_is_restored(tmp_path):
    run = {"model": (model := Empty()), "optimizer": torch.optim.Adam(model.parameters())}
    (model.weight.sum() + model.none.sum()).backward()
    run["optimizer"].step()
    checkpointer(tmp_path, run).save(1)
    again = {"model": (other := Empty()), "optimizer": torch.optim.Adam(other.parameters())}
    assert checkpointer(tmp_path, again).load() == 1
    assert again["optimizer"].state_dict()["state"][0]["step"] == 1


def test_a_state_without_a_step_leaves_nothing_of_later_steps(tmp_path):
    run = build()
    checkpointer(tmp_path, run).save(0)
    train(run, 2)
    assert checkpointer(tmp_path, run).load() == 0
    assert run["optimizer"].state_dict()["state"] == {}


def test_another_type_is_reported(tmp_path):
    checkpointer(tmp_path, {"model": nn.Linear(2, 2)}).save(1)
    lines = []
    TorchCheckpointer(tmp_path, {"model": nn.Linear(2, 2).bfloat16()}, log=lines.append).load()
    assert any(
        "converted: model.weight: torch.float32 in the checkpoint, torch.bfloat16 in the run" in line
        for line in lines
    )


class Holder:
    """Object whose state is what it holds."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"rng": Holder({})}, "'rng' cannot name an object"),
        ({"a.b": Holder({})}, "'a.b' cannot name an object"),
        ({"values": [1]}, "a list has no state_dict and load_state_dict"),
        ({}, "names no object"),
        ([nn.Linear(1, 1)], "names no object"),
    ],
)
def test_what_cannot_be_stored_is_rejected(tmp_path, state, message):
    with pytest.raises(CheckpointLayoutError, match=message):
        checkpointer(tmp_path, state)


def test_a_state_that_could_not_be_loaded_is_rejected_when_it_is_saved(tmp_path):
    with pytest.raises(
        CheckpointLayoutError, match=r"state.path: its state could not be stored and loaded again"
    ):
        checkpointer(tmp_path, {"path": Holder({"value": Holder})}).save(1)
    with pytest.raises(CheckpointLayoutError, match=r"state.function: its state could not be stored"):
        checkpointer(tmp_path, {"function": Holder({"value": lambda: None})}).save(1)
    stranger = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with pytest.raises(CheckpointLayoutError, match="belongs to no module"):
        checkpointer(tmp_path, {"model": nn.Linear(1, 1), "optimizer": stranger}).save(1)
    assert not [*tmp_path.iterdir()]


def test_options_of_other_layouts_are_rejected(tmp_path):
    with pytest.raises(CheckpointConfigError, match="non_persistent_save_interval=5: would have no effect"):
        checkpointer(tmp_path, build(), non_persistent_save_interval=5)
    with pytest.raises(CheckpointConfigError, match="most_recent_k=0"):
        checkpointer(tmp_path, build(), most_recent_k=0)
    with pytest.raises(ValueError, match=r"checkpoint.save: not set"):
        TorchCheckpointer(CheckpointConfig(load=str(tmp_path)), {"model": nn.Linear(1, 1)}).save(1)


def test_a_checkpoint_of_another_program_is_named(tmp_path):
    saved = checkpointer(tmp_path, build()).save(1)
    (saved.path / "manifest.json").unlink()
    with pytest.raises(NoIntactCheckpointError, match=r"lacks manifest\.json"):
        checkpointer(tmp_path, build()).load()


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("megatron", "transformer_engine"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import torch
from mb_checkpoint import TorchCheckpointer
model = torch.nn.Linear(2, 2)
state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
with TorchCheckpointer(sys.argv[1], state, async_save=True) as checkpointer:
    assert checkpointer.load() == 0
    checkpointer.save(1)
with TorchCheckpointer(sys.argv[1], state) as checkpointer:
    assert checkpointer.load() == 1
assert not any(name.partition(".")[0] == "megatron" for name in sys.modules)
"""


def test_megatron_is_not_needed(tmp_path):
    subprocess.run([sys.executable, "-c", BLOCKED, str(tmp_path / "checkpoints")], check=True, timeout=120)


def example(folder, *options, ranks=2, steps=12):
    return ScriptRanks(EXAMPLE, folder, "--steps", steps, *options, ranks=ranks)


def losses(text):
    found = re.findall(r"^rank (\d+) step (\d+) loss (\S+)$", text, re.MULTILINE)
    return {(int(rank), int(step)): loss for rank, step, loss in found}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    output = example(tmp_path_factory.mktemp("whole")).output()
    found = losses(output)
    assert len(found) == 24, output[-3000:]
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="at once"),
        pytest.param(("--background",), id="in the background", marks=pytest.mark.slow),
    ],
)
def test_a_sharded_loop_that_is_killed_resumes_bit_for_bit(uninterrupted, tmp_path, options):
    at = random.Random(str(options)).randint(5, 10)
    example(tmp_path, *options).kill(after=f"^rank 0 step {at} ")
    output = example(tmp_path, *options).output()
    found = losses(output)
    assert (0, 12) in found, output[-3000:]
    assert "resumed from" in output
    assert (0, 1) not in found
    assert all(uninterrupted[key] == loss for key, loss in found.items())


def test_another_number_of_ranks_loads_the_shards(uninterrupted, tmp_path):
    example(tmp_path, steps=4).output()
    output = example(tmp_path, ranks=1, steps=6).output()
    assert "random state: stored for another number of ranks" in output
    assert "resumed from" in output
    assert (0, 6) in losses(output)


DIFFERENT = """
import sys
import torch
import torch.distributed as dist
from mb_checkpoint import TorchCheckpointer
from mb_checkpoint.errors import CheckpointLayoutError
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
model = torch.nn.parallel.DistributedDataParallel(layers)
model(torch.randn(4, 2) + rank)
of_first = layers[1].running_mean.clone()
dist.broadcast(of_first, 0)
assert torch.equal(layers[1].running_mean, of_first) == (rank == 0)
class Loader:
    position = rank
    def state_dict(self):
        return {"position": self.position}
    def load_state_dict(self, state):
        self.position = state["position"]
state = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "loader": Loader()}
saved = TorchCheckpointer(sys.argv[1], state).save(1)
state["loader"].position = -1
assert TorchCheckpointer(sys.argv[1], state).load() == 1
assert state["loader"].position == rank
assert torch.equal(layers[1].running_mean, of_first)
with torch.no_grad():
    layers[0].weight += rank
try:
    TorchCheckpointer(sys.argv[1], state).save(2)
except CheckpointLayoutError as error:
    print("rejected:", error)
dist.destroy_process_group()
"""


def test_replicas_must_be_equal_and_buffers_and_other_objects_may_differ(tmp_path):
    (tmp_path / "run.py").write_text(DIFFERENT)
    output = ScriptRanks(tmp_path / "run.py", tmp_path / "checkpoints").output()
    assert output.count("rejected: state: model.0.weight: the tensors of rank") == 2, output
    stored = describe_checkpoint(tmp_path / "checkpoints" / "iter_0000001").tensors
    statistics = {f"model.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert {*stored} == {f"model.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")} | statistics
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "loader": Holder({})}
    with pytest.raises(
        CheckpointLayoutError, match="differs between the 2 ranks that stored it, and this run has 1"
    ):
        checkpointer(tmp_path / "checkpoints", state).load()


def test_an_optimizer_of_a_renamed_module_is_rejected_with_both_names(tmp_path):
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(layer.parameters())
    TorchCheckpointer(tmp_path, {"model": layer, "optimizer": optimizer}).save(1)
    renamed = TorchCheckpointer(tmp_path, {"net": layer, "optimizer": optimizer})
    with pytest.raises(CheckpointShapeError, match=r"model\.weight there is net\.weight in the run"):
        renamed.load(strict=False)


@pytest.mark.parametrize(
    ("step", "error"), [(None, TypeError), ("1", TypeError), (1.5, TypeError), (-1, ValueError)]
)
def test_a_step_that_is_no_number_of_finished_steps_is_rejected(tmp_path, step, error):
    with pytest.raises(error):
        TorchCheckpointer(tmp_path, {"model": nn.Linear(1, 1)}).save(step)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_or_a_file_is_rejected(tmp_path):
    state = {"model": nn.Linear(1, 1)}
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointConfigError, match="checkpoints: None is a NoneType"):
        TorchCheckpointer(None, state)
    with pytest.raises(CheckpointFolderError, match="is a file"):
        TorchCheckpointer(tmp_path / "file", state)
