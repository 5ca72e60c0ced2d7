"""A run of TorchCheckpointer on gloo ranks, with the methods of `tiny_state.TinyStateRun`."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mb_checkpoint import CheckpointConfig, TorchCheckpointer
from mb_checkpoint.context import ScheduledSave


class TorchRun:
    """One sharded parameter with the value of the step, and its optimizer."""

    def __init__(self, root, value, **section):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.module = nn.Module()
        weight = distribute_tensor(torch.full((8,), float(value)), mesh, [Shard(0)])
        self.module.weight = nn.Parameter(weight)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0, momentum=0.9)
        optimizer.state[self.module.weight] = {"momentum_buffer": weight.clone()}
        self.state = SimpleNamespace(train_state=SimpleNamespace(step=value))
        self.checkpointer = TorchCheckpointer(
            CheckpointConfig(save=str(root), load=str(root), **section),
            {"model": self.module, "optimizer": optimizer},
            log=lambda _line: None,
        )

    @property
    def model(self):
        """Value of the parameter by its name."""
        return {"weight": float(self.module.weight.detach().to_local()[0])}

    def save(self):
        """Save, and wait for a save in the background."""
        outcome = self.checkpointer.save(self.state.train_state.step)
        return self.checkpointer.poll(blocking=True) if isinstance(outcome, ScheduledSave) else outcome

    def load(self):
        """Load the newest checkpoint."""
        self.state.train_state.step = self.checkpointer.load()
        return self.checkpointer.loaded
