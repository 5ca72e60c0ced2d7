"""Smallest state under Megatron-FSDP, like `tiny_state.TinyStateRun`: every weight equals the step.

Imports Megatron: for processes in which `mb_host.install()` has run.
"""

import torch
from tiny_run import Shape, TinyRun

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager


class FsdpRun:
    """State that a rank saves and loads."""

    def __init__(self, root, step, **section):
        self._run = TinyRun(Shape(fsdp="optim_grads_params", layers=1, hidden=16))
        section = {"save": str(root), "load": str(root), "most_recent_k": 2, **section}
        self._run.manager = DefaultCheckpointManager(CheckpointConfig(ckpt_format="fsdp_dtensor", **section))
        self.model, self.state = self, self._run.state
        self.state.train_state.step = step
        with torch.no_grad():
            for part in self._parts():
                part.fill_(step)

    def _parts(self):
        return [parameter.detach().to_local() for parameter in self._run.weights().values()]

    def values(self):
        return {value for part in self._parts() for value in part.flatten().tolist()}

    def save(self):
        done = self._run.save()
        return self._run.manager.finalize_async_saves(blocking=True, terminate=True) or done

    def load(self):
        return self._run.load()
