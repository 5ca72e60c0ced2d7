"""When the trainer asks a checkpoint manager to load, and what it says of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager
from mb_checkpoint.context import LoadedCheckpoint
from mb_trainer.loading import ManagerStateError, load
from mb_trainer.recipes import gpt_tiny


class Default(DefaultCheckpointManager):
    """Knows what a load finds; there is nothing on a shared file system."""

    def __init__(self, finds):
        super().__init__(CheckpointConfig())
        self.finds = finds

    def load(self, ctx):
        self.loaded = self.finds
        ctx.state.train_state.step = self.finds.step
        return self.finds.step, 0.0


class Own:
    """A manager of one's own."""

    def __init__(self, step):
        self.step = step

    def has_checkpoint(self):
        return self.step > 0

    def load(self, ctx):
        ctx.state.train_state.step = self.step
        return self.step, 0.0


class Documented:
    """A manager without `has_checkpoint`, as the documented protocol has none."""

    def __init__(self, returns, restores=None):
        self.returns, self.restores = returns, restores

    def load(self, ctx):
        if self.restores is not None:
            ctx.state.train_state.step = self.restores
        return self.returns


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("manager", "step", "said"),
    [
        (
            lambda: Default(LoadedCheckpoint(source="resumed", step=14, path=Path("/node"))),
            14,
            ["resumed from /node at step 14"],
        ),
        (lambda: Default(LoadedCheckpoint(source="nothing", notes=("no checkpoint found",))), 0, []),
        (lambda: Own(7), 7, ["resumed at step 7"]),
        (lambda: Own(0), None, []),
        (lambda: Documented((7, 0), restores=7), 7, ["resumed at step 7"]),
        (lambda: Documented((0, 0)), None, []),
    ],
    ids=["only local ones", "nothing", "own", "own with nothing", "documented", "documented with nothing"],
)
def test_the_default_manager_always_loads_and_another_one_is_asked_first(group, manager, step, said):
    lines = []
    state = SimpleNamespace(cfg=gpt_tiny(), train_state=SimpleNamespace(step=None))
    trainee = SimpleNamespace(chunks=[], optimizer=None, scheduler=None)
    load(manager(), state, trainee, groups=None, reruns=None, voice=SimpleNamespace(say=lines.append))
    assert (state.train_state.step, lines) == (step, said)


def test_a_manager_that_loads_a_step_without_the_counters_is_refused(group):
    state = SimpleNamespace(cfg=gpt_tiny(), train_state=SimpleNamespace(step=0))
    trainee = SimpleNamespace(chunks=[], optimizer=None, scheduler=None)
    with pytest.raises(
        ManagerStateError, match=r"returned step 7 and left ctx\.state\.train_state at step 0"
    ):
        load(Documented((7, 0)), state, trainee, groups=None, reruns=None, voice=SimpleNamespace(say=print))
