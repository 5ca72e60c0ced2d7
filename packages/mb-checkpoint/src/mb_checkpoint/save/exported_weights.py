"""Copies of checkpoints in Hugging Face format, written next to the training (`also_save_hf_checkpoint`).

One process next to one rank exports, or with `hf_distributed_save` one next to every n-th rank:

1. After a save, each of them starts its process, which reads from the checkpoint what its files need, and writes them.
2. At the next save, or at the end of the training, all ranks wait for the processes, and exchange what failed.
3. The logging rank renames the folder of the copy, which has another name until then.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mb_checkpoint.collectives import gather
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import cause_of
from mb_checkpoint.formats.converted_weights import environment_of_child
from mb_checkpoint.state.position_copies import SaveEvent

HF_FOLDER = "hf"
"""Name of the copy in the folder of a checkpoint."""
_SMALL_FILES = (".json", ".txt", ".model", ".jinja")
_STAGING = ".hf-writing"
_FIELD = "checkpoint.also_save_hf_checkpoint"


class Ranks(Protocol):
    """Position of this process in the run; `mb_launch.World` matches."""

    @property
    def rank(self) -> int: ...  # noqa: D102

    @property
    def world_size(self) -> int: ...  # noqa: D102

    @property
    def is_logging_rank(self) -> bool: ...  # noqa: D102


class EndEvent(Protocol):
    """Context of the end of the training; `mb_loop.CallbackContext` matches."""

    @property
    def outcome(self) -> object | None:
        """Result of the training; None if it ends with an exception."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportShare:
    """Share of one rank in each copy."""

    part: int | None
    """Number of its part; None: it writes nothing."""
    parts: int
    """Number of ranks that write."""
    completes: bool
    """Whether it reports and completes the copy; of one rank."""

    @classmethod
    def of(cls, ranks: Ranks, *, every: int) -> "ExportShare":
        """Return the share of a rank if every n-th rank writes, from rank 0."""
        part = None if ranks.rank % every else ranks.rank // every
        return cls(part=part, parts=-(-ranks.world_size // every), completes=ranks.is_logging_rank)


@dataclass(frozen=True, slots=True)
class _RunningExport:
    process: "subprocess.Popen[str] | None"
    failure: str
    checkpoint: Path
    step: int

    def wait(self) -> str:
        """Wait for the process; return why it failed, or an empty text."""
        if self.process is None:
            return self.failure
        _, reason = self.process.communicate()
        code = self.process.returncode
        return (reason.strip() or f"exit code {code}") if code else ""


class HuggingFaceCopies:
    """Callback that exports each persistent checkpoint to `iter_*/hf` in other processes, while training continues.

    Use it on one rank; with a `share`, on all ranks. Checkpoints are exported one at a time: a save during an export
    waits for it, and so does the end of the training. A copy has its name when it is complete. A failed export is
    logged, and training continues. Before its first export, a process removes what interrupted ones have left in the
    checkpoints of the folder.

    Args:
        command: Program that exports, called with the folder of the checkpoint, `--out` and the folder to write; for a
            share also with `--part` and the part, such as 0/4.
        source: Folder whose other small files, such as generation_config.json, are copied, too; None: none.
        log: Receives a line for each copy.
        environment: Environment of the program; None: `os.environ`.
        share: Share of this rank; None: this rank writes alone, and no other has the callback.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        source: str | None,
        log: Callable[[str], object],
        environment: Mapping[str, str] | None = None,
        share: ExportShare | None = None,
    ) -> None:
        self._command = list(command)
        self._source = source
        self._log = log
        self._environment = environment_of_child(os.environ if environment is None else environment)
        self._share = share
        self._running: _RunningExport | None = None
        self._cleaned = False

    @property
    def _completes(self) -> bool:
        return self._share is None or self._share.completes

    def on_checkpoint_save(self, context: SaveEvent) -> None:
        """Start the export of a complete checkpoint. Collective with a share."""
        save = context.save
        if save is None or save.non_persistent or save.path is None:
            return
        self._wait()
        if self._completes:
            self._remove_remains(save.path)
        if self._share is not None:
            gather(None)  # no rank writes before the remains of another export are gone
        process, failure = None, ""
        try:
            process = self._start(save.path)
        except OSError as error:
            failure = cause_of(error)
        self._running = _RunningExport(process, failure, save.path, save.step)

    def _remove_remains(self, checkpoint: Path) -> None:
        """Remove what interrupted exports left in a checkpoint, and before the first export in those next to it."""
        folders = [checkpoint] if self._cleaned else [checkpoint, *checkpoint.parent.glob("iter_*")]
        self._cleaned = True
        for folder in folders:
            shutil.rmtree(folder / _STAGING, ignore_errors=True)

    def _start(self, checkpoint: Path) -> "subprocess.Popen[str] | None":
        """Start the process of this rank, if it has a part."""
        share = self._share
        if share is not None and share.part is None:
            return None
        part = [] if share is None else ["--part", f"{share.part}/{share.parts}"]
        return subprocess.Popen(
            [*self._command, str(checkpoint), "--out", str(checkpoint / _STAGING), *part],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def on_train_end(self, context: EndEvent) -> None:
        """Wait for the last export. Collective with a share, unless training ends with an exception."""
        if self._share is None or context.outcome is not None:
            self._wait()
        elif self._running is not None:
            self._running.wait()
            if self._completes:
                self._warn(self._running.step, "the run failed before all ranks had written their parts")

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        failures = [running.wait()] if self._share is None else gather(running.wait())
        if not self._completes:
            return
        staging, target = running.checkpoint / _STAGING, running.checkpoint / HF_FOLDER
        if reasons := [failure for failure in failures if failure]:
            shutil.rmtree(staging, ignore_errors=True)
            self._warn(running.step, reasons[0].removeprefix("error: "))
            return
        try:
            self._copy_small_files(staging)
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            self._log(f"  step {running.step} in Hugging Face format in {target}")
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            self._warn(running.step, cause_of(error))

    def _warn(self, step: int, reason: str) -> None:
        self._log(f"warning: {_FIELD}: step {step}: {reason}")

    def _copy_small_files(self, target: Path) -> None:
        """Copy the files of the source that the export has not written, except its weights and its code."""
        files = [] if self._source is None else sorted(Path(self._source).iterdir())
        for file in files:
            small = file.suffix in _SMALL_FILES and not file.name.endswith(".index.json")
            if small and not (target / file.name).exists():
                shutil.copyfile(file, target / file.name)


def hugging_face_copies(
    config: CheckpointConfig, *, command: Sequence[str], ranks: Ranks, log: Callable[[str], object]
) -> list[HuggingFaceCopies]:
    """Return the callback of a rank that exports each checkpoint; none without `also_save_hf_checkpoint`."""
    if not config.also_save_hf_checkpoint:
        return []
    if config.hf_distributed_save:
        share = ExportShare.of(ranks, every=config.hf_save_every_n_ranks)
        return [HuggingFaceCopies(command, source=config.hf_source_path, log=log, share=share)]
    alone = [HuggingFaceCopies(command, source=config.hf_source_path, log=log)]
    return alone if ranks.is_logging_rank else []
