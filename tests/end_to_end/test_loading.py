"""When the trainer asks a checkpoint manager to load, and what it says of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager
from mb_checkpoint.context import LoadedCheckpoint
from mb_trainer.loading import load
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
    ],
    ids=["only local ones", "nothing", "own", "own with nothing"],
)
def test_the_default_manager_always_loads_and_another_one_is_asked_first(group, manager, step, said):
    lines = []
    state = SimpleNamespace(cfg=gpt_tiny(), train_state=SimpleNamespace(step=None))
    trainee = SimpleNamespace(chunks=[], optimizer=None, scheduler=None)
    load(manager(), state, trainee, groups=None, reruns=None, voice=SimpleNamespace(say=lines.append))
    assert (state.train_state.step, lines) == (step, said)
