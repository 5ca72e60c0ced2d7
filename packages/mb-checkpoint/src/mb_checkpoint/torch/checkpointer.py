"""Checkpoints of any PyTorch loop: plain modules, DistributedDataParallel and fully_shard, without Megatron Core.

The sequence of a save is that of `save.py`. Torch is required; torch.distributed is used if it is initialized.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

from mb_checkpoint.collectives import number_of_ranks, own_rank, read_for_all_ranks
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import FailedSave, LoadedCheckpoint, SavedCheckpoint, ScheduledSave
from mb_checkpoint.errors import (
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointNotFoundError,
)
from mb_checkpoint.formats.layout import TRAIN_STATE
from mb_checkpoint.formats.manifest import Manifest, read_manifest
from mb_checkpoint.inspect.best import metric_entry
from mb_checkpoint.load.index import index_of_all_ranks
from mb_checkpoint.load.run_load import log_loaded
from mb_checkpoint.load.select import SelectedCheckpoint, select_checkpoint
from mb_checkpoint.load.sources import Source, load_intact
from mb_checkpoint.load.verified_reads import Verification
from mb_checkpoint.rules import reject_violations
from mb_checkpoint.save.plan import SavePlan, stage_save
from mb_checkpoint.save.planner import ShardSavePlanner
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.saver import Saver
from mb_checkpoint.state.train_state import encode_train_state, read_train_state
from mb_checkpoint.torch.state import TorchState
from mb_schema.versions import installed_versions

FORMAT = "torch_dcp"
"""Layout in the manifest: torch's distributed checkpoint, with the names of `torch_state`."""

READ_FIELDS = frozenset(
    {
        "save",
        "load",
        "ckpt_step",
        "exit_on_missing_checkpoint",
        "most_recent_k",
        "save_retain_interval",
        "best_metric",
        "best_metric_mode",
        "save_rng",
        "load_rng",
        "storage_writers_per_rank",
        "dist_ckpt_workers",
        "fully_parallel_save",
        "ckpt_assume_constant_structure",
        "verify_integrity",
        "checksum",
        "on_save_error",
        "storage",
        "storage_options",
        "async_save",
        "async_hang_seconds",
        "async_write_results_mp_mode",
        "async_ckpt_cpu_priority",
        "async_ckpt_io_priority",
    }
)
"""Fields of the section that are read; any other is rejected if it is set."""


class TorchCheckpointer:
    """Checkpoints of a PyTorch training loop.

    All methods are collective over the default process group, if there is one::

        checkpointer = TorchCheckpointer("checkpoints", {"model": model, "optimizer": optimizer}, most_recent_k=3)
        for step in range(checkpointer.load() + 1, steps + 1):
            train_one_step()
            checkpointer.poll()
            if step % 100 == 0:
                checkpointer.save(step)
        checkpointer.close()

    Each checkpoint becomes visible only when it is complete, with the checksum of every file. The random states of all
    ranks are stored with the state. A failed save is logged, and training continues; with `on_save_error="raise"` it is
    an error.

    Args:
        checkpoints: Folder of the checkpoints, from which a run resumes; or a section.
        state: Name -> module, optimizer, or any object with `state_dict` and `load_state_dict`: a scheduler, a gradient
            scaler, a sampler, a data loader. Objects other than modules and optimizers may differ between ranks.
        log: Receives a line per load, save and skipped checkpoint on rank 0.
        clock: Monotonic clock in seconds.
        **options: Fields of `CheckpointConfig`, such as `most_recent_k`, `async_save` and `on_save_error`.

    Attributes:
        loaded: Result of the last `load`; None before.

    Raises:
        CheckpointConfigError: The section is invalid, or sets a field that only Megatron's layouts read; or the folder
            is not a path.
        CheckpointFolderError: The path of the folder is a file.
        CheckpointLayoutError: An object of the state cannot be stored.
    """

    def __init__(
        self,
        checkpoints: str | Path | CheckpointConfig,
        state: Mapping[str, Any],
        *,
        log: Callable[[str], object] = print,
        clock: Callable[[], float] = time.perf_counter,
        **options: Any,
    ) -> None:
        if not isinstance(checkpoints, CheckpointConfig):
            if not isinstance(checkpoints, str | Path):
                raise CheckpointConfigError(
                    f"checkpoints: {checkpoints!r:.60} is a {type(checkpoints).__name__}, not a path of a folder. "
                    "Pass a str, a Path or a CheckpointConfig."
                )
            checkpoints = CheckpointConfig(save=str(checkpoints), load=str(checkpoints))
        self._config = replace(checkpoints, **options)
        _reject_unread(self._config)
        reject_violations(self._config)
        if self._config.save is not None and Path(self._config.save).is_file():
            raise CheckpointFolderError(
                f"checkpoint.save: {self._config.save} is a file, so nothing can be saved there. Name a folder."
            )
        self._state = TorchState(state)
        self._log = log if own_rank() == 0 else _ignore
        self._planner = ShardSavePlanner(self._config)
        self._saver = Saver(
            self._config,
            on_saved=self._report,
            on_failed=lambda failed: self._log(failed.message),
            warn=self._log,
            log_storage=self._log,
            clock=clock,
        )
        self.loaded: LoadedCheckpoint | None = None

    def load(self, *, strict: bool = True) -> int:
        """Restore the newest complete checkpoint; return its step, 0 if there is none.

        Args:
            strict: Reject a checkpoint with other entries than this run; False leaves those that are missing on one
                side unchanged.

        Raises:
            CheckpointNotFoundError: `ckpt_step` does not exist, or every checkpoint is damaged, or there is none and
                `exit_on_missing_checkpoint` is set.
            IncompleteCheckpointError: `ckpt_step` or the path names one checkpoint, and it is damaged.
            CheckpointShapeError, CheckpointLayoutError, CheckpointReadError: See `TorchState.load`.
            StorageError: See `StorageMirror.load`.
        """
        self.loaded = self._saver.load(lambda: self._find_and_read(strict=strict))
        log_loaded(self.loaded, self._log)
        return self.loaded.step

    def _find_and_read(self, *, strict: bool) -> LoadedCheckpoint:
        config = self._config

        def find(rejected: Mapping[Path, str]) -> tuple[Source, SelectedCheckpoint | None]:
            chosen = None
            if config.load is not None:
                chosen = select_checkpoint(config.load, step=config.ckpt_step, rejected=rejected)
            if chosen is None and config.exit_on_missing_checkpoint:
                raise CheckpointNotFoundError(
                    f"checkpoint.load: no checkpoint in {config.load}, and exit_on_missing_checkpoint forbids to start "
                    "without one. Name another folder, or set it to false."
                )
            return ("nothing" if chosen is None else "resumed"), chosen

        def load(
            _: Source, chosen: SelectedCheckpoint | None, verification: Verification
        ) -> LoadedCheckpoint:
            if chosen is None:
                return LoadedCheckpoint(source="nothing")
            return self._read(chosen, strict=strict, verification=verification)

        return load_intact(find, config, load)

    def save(self, step: int, **counters: int | float | bool) -> SavedCheckpoint | ScheduledSave | FailedSave:
        """Save the state after a step, or start to save it in the background.

        Waits for a previous save that is still in flight.

        Args:
            step: Number of finished steps, which names the checkpoint.
            **counters: Further numbers to store with it, which `read_train_state` returns. That of the name
                `best_metric`, the value of a validation after this step, decides which checkpoint is the best.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise"; otherwise a FailedSave is returned.
            CheckpointLayoutError: The state cannot be stored; see `TorchState.entries`.
            TypeError: The step is not an integer.
            ValueError: The step is negative, or the section has no `save`.
        """
        step = index(step)
        if step < 0:
            raise ValueError(
                f"save: step={step} is negative, but it is the number of finished steps. Pass 0 or more."
            )
        if self._config.save is None:
            raise ValueError(
                "checkpoint.save: not set, so there is no folder to save to. Set it, or do not save."
            )
        root = Path(self._config.save)
        return self._saver.save(root, step, lambda: self._plan(root, {**counters, "step": step}))

    def poll(self, *, blocking: bool = False) -> SavedCheckpoint | FailedSave | None:
        """Return the result of the save in the background, once; None while it is in progress, or if there is none.

        Not a collective: while a save is in flight, a call costs a round trip to the store of the process group,
        otherwise nothing. Rank 0 then deletes old checkpoints in the background. With `blocking`, waits for both.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise".
        """
        return self._saver.poll(blocking=blocking)

    def close(self) -> None:
        """Wait for the save and the copy to a storage in flight, and end the background process."""
        try:
            self._saver.poll(blocking=True, terminate=True)
        finally:
            self._saver.close()

    def __enter__(self) -> "TorchCheckpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an error, without waiting for a save, because another rank may have failed."""
        if kind is None:
            self.close()
        else:
            self._saver.close()

    def _read(
        self, chosen: SelectedCheckpoint, *, strict: bool, verification: Verification
    ) -> LoadedCheckpoint:
        path = chosen.path
        manifest = read_for_all_ranks(path, lambda: read_manifest(path))
        if manifest is None or manifest.ckpt_format != FORMAT:
            layout = "another program" if manifest is None else f"a run in the layout {manifest.ckpt_format}"
            raise CheckpointLayoutError(
                f"{path}: was written by {layout}, and this loop reads checkpoints of TorchCheckpointer. Load it with "
                "mb_checkpoint.load_checkpoint, or name another folder."
            )
        counters = read_for_all_ranks(path, lambda: read_train_state(path / TRAIN_STATE))
        with index_of_all_ranks(path):
            notes = self._state.load(
                path, with_rng=self._config.load_rng, strict=strict, verification=verification
            )
        return LoadedCheckpoint(
            source="resumed",
            step=int(counters["step"]),
            path=path,
            skipped=chosen.skipped,
            notes=tuple(notes),
        )

    def _plan(self, root: Path, counters: Mapping[str, int | float | bool]) -> SavePlan:
        """Collect the state of this rank, and assign each piece of it to one rank. Collective."""
        config = self._config
        metric = None if config.best_metric is None else counters.get(config.best_metric)
        entries = self._state.entries(with_rng=config.save_rng)
        step = int(counters["step"])
        return stage_save(
            root,
            Manifest(
                step=step,
                files=(),
                ckpt_format=FORMAT,
                layout={"world_size": number_of_ranks()},
                content={
                    "random_states": config.save_rng,
                    **metric_entry(config.best_metric, config.best_metric_mode, metric),
                },
                versions=installed_versions("mb-checkpoint", "torch"),
            ),
            plan=lambda staging: self._planner.plan(entries, staging, metadata={}, validate=True),
            write_small_files=lambda staging: (staging / TRAIN_STATE).write_bytes(
                encode_train_state(counters)
            ),
            pruning=PruneJob(
                root=root,
                step=step,
                keep=-1 if config.most_recent_k is None else config.most_recent_k,
                retain_interval=config.save_retain_interval,
                verified=self._saver.verified,
            ),
            checksum=config.checksum,
        )

    def _report(self, saved: SavedCheckpoint) -> None:
        self._log(f"saved {saved.path} ({saved.total_bytes / 2**20:.1f} MiB in {saved.seconds:.2f} s)")


def _ignore(_line: str) -> None: ...


def _reject_unread(config: CheckpointConfig) -> None:
    default = CheckpointConfig()
    without_effect = [
        f"{item.name}={getattr(config, item.name)!r}"
        for item in fields(config)
        if item.name not in READ_FIELDS and getattr(config, item.name) != getattr(default, item.name)
    ]
    if without_effect:
        raise CheckpointConfigError(
            f"checkpoint: {', '.join(without_effect)}: would have no effect, because only checkpoints of Megatron Core "
            "models have these options. Leave them at their defaults."
        )
