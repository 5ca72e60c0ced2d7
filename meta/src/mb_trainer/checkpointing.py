"""The training loop's checkpointer, on top of the checkpoint manager."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointSaveContext, DefaultCheckpointManager
from mb_trainer.data import Vocabulary
from mb_trainer.trainee import Trainee

TOKENIZER = "tokenizer.json"
"""Name of the tokenizer inside a checkpoint."""


class Saves:
    """Fits the loop's Checkpointer: each save gathers what the manager writes. Collective over the world.

    Args:
        manager: writes the checkpoints.
        state: counters and configuration.
        trainee: model, optimizer and scheduler.
        groups: process groups.
        say: prints a line.
        pause: stops the step clock while a checkpoint is written.
    """

    def __init__(
        self,
        manager: DefaultCheckpointManager,
        *,
        state: Any,
        trainee: Trainee,
        groups: ProcessGroupCollection,
        say: Callable[[str], None],
        pause: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._manager = manager
        self._state = state
        self._trainee = trainee
        self._groups = groups
        self._say = say
        self._pause = pause

    def save(self, step: int, *, temporary: bool) -> None:
        """Write a checkpoint of this step, and print the line that log readers look for."""
        context = CheckpointSaveContext(
            state=self._state,
            model=self._trainee.chunks,
            optimizer=self._trainee.optimizer,
            opt_param_scheduler=self._trainee.scheduler,
            num_floating_point_operations_so_far=self._state.train_state.floating_point_operations_so_far,
            non_persistent_ckpt=temporary,
            pg_collection=self._groups,
        )
        with self._pause():
            saved = self._manager.save(context)
        self._say(f"  {saved.message}")

    def poll(self, *, blocking: bool) -> None:
        """Finish background saves."""
        self._manager.finalize_async_saves(self._state, blocking=blocking, terminate=blocking)


def write_tokenizer(vocabulary: Vocabulary) -> Callable[[Path], None]:
    """Return what puts the tokenizer's file into each checkpoint, so that the checkpoint can be used alone."""

    def write(folder: Path) -> None:
        file = vocabulary.file
        if file is not None:
            shutil.copyfile(file / TOKENIZER if file.is_dir() else file, folder / TOKENIZER)

    return write
