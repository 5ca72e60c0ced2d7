"""Copies of checkpoints in Hugging Face format, written next to the training (`also_save_hf_checkpoint`)."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mb_checkpoint.converted_weights import environment_of_child
from mb_checkpoint.errors import cause_of
from mb_checkpoint.position_copies import SaveEvent

HF_FOLDER = "hf"
"""Name of the copy in the folder of a checkpoint."""
_SMALL_FILES = (".json", ".txt", ".model", ".jinja")
_STAGING = ".hf-writing"


class ExportSettings(Protocol):
    """Fields of `CheckpointConfig` that determine the copies."""

    @property
    def also_save_hf_checkpoint(self) -> bool: ...  # noqa: D102

    @property
    def hf_source_path(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _RunningExport:
    process: "subprocess.Popen[str]"
    checkpoint: Path
    step: int


class HuggingFaceCopies:
    """Callback that exports each persistent checkpoint to `iter_*/hf` in its own process, while training continues.

    Use it on one rank. Checkpoints are exported one at a time: a save during an export waits for it, and so does the
    end of the training. A copy has its name when it is complete. A failed export is logged, and training continues.

    Args:
        command: Program that exports, called with the folder of the checkpoint, `--out` and the folder to write.
        source: Folder whose other small files, such as generation_config.json, are copied, too; None: none.
        log: Receives a line for each copy.
        environment: Environment of the program; None: `os.environ`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        source: str | None,
        log: Callable[[str], object],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._source = source
        self._log = log
        self._environment = environment_of_child(os.environ if environment is None else environment)
        self._running: _RunningExport | None = None

    def on_checkpoint_save(self, context: SaveEvent) -> None:
        """Start the export of a complete checkpoint."""
        save = context.save
        if save is None or save.non_persistent or save.path is None:
            return
        self._wait()
        staging = save.path / _STAGING
        shutil.rmtree(staging, ignore_errors=True)
        try:
            process = subprocess.Popen(
                [*self._command, str(save.path), "--out", str(staging)],
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            self._log(f"warning: checkpoint.also_save_hf_checkpoint: step {save.step}: {cause_of(error)}")
            return
        self._running = _RunningExport(process, save.path, save.step)

    def on_train_end(self, _context: object) -> None:
        """Wait for the last export."""
        self._wait()

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        _, reason = running.process.communicate()
        staging, target = running.checkpoint / _STAGING, running.checkpoint / HF_FOLDER
        try:
            if running.process.returncode:
                shutil.rmtree(staging, ignore_errors=True)
                raise OSError(reason.strip() or f"exit code {running.process.returncode}")
            self._copy_small_files(staging)
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            self._log(f"  step {running.step} in Hugging Face format in {target}")
        except OSError as error:
            self._log(f"warning: checkpoint.also_save_hf_checkpoint: step {running.step}: {cause_of(error)}")

    def _copy_small_files(self, target: Path) -> None:
        """Copy the files of the source that the export has not written, except its weights and its code."""
        files = [] if self._source is None else sorted(Path(self._source).iterdir())
        for file in files:
            small = file.suffix in _SMALL_FILES and not file.name.endswith(".index.json")
            if small and not (target / file.name).exists():
                shutil.copyfile(file, target / file.name)


def hugging_face_copies(
    config: ExportSettings, *, command: Sequence[str], on_this_rank: bool, log: Callable[[str], object]
) -> list[HuggingFaceCopies]:
    """Return the callback that exports each checkpoint, for one rank; none unless `also_save_hf_checkpoint` is set."""
    if not (config.also_save_hf_checkpoint and on_this_rank):
        return []
    return [HuggingFaceCopies(command, source=config.hf_source_path, log=log)]
