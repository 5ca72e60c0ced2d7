"""Source of a run: precedence of the configured sources, and choice of an intact checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from mb_checkpoint.collectives import gather, number_of_ranks, on_rank_zero, own_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointReadError,
    DamagedWhileReadError,
    ManifestError,
    file_problem,
    first_of,
)
from mb_checkpoint.formats.converted_weights import source_of_weights
from mb_checkpoint.formats.foreign import is_readable_here, is_same_folder, recognize_foreign, why_no_source
from mb_checkpoint.formats.layout import (
    MANIFEST,
    RELEASE,
    RESUMABLE,
    WEIGHTS,
    is_iteration_directory,
    non_persistent_roots,
)
from mb_checkpoint.formats.manifest import (
    Manifest,
    files_of_rank,
    find_hash_mismatches,
    is_data_file,
    read_manifest,
)
from mb_checkpoint.load.select import SelectedCheckpoint, SkippedCheckpoint, select_checkpoint
from mb_checkpoint.load.verified_reads import Verification
from mb_checkpoint.locks import reader_lock

Source = Literal["resumed", "weights", "nothing"]
Chosen = TypeVar("Chosen", bound=SelectedCheckpoint | None)
T = TypeVar("T")


def load_intact(
    find: Callable[[Mapping[Path, str]], tuple[Source, Chosen]],
    config: CheckpointConfig,
    load: Callable[[Source, Chosen, Verification], T],
    *,
    while_reading: bool = True,
) -> T:
    """Select a checkpoint whose files match the manifest, and load it under a reader lock; return what `load` returns.

    Collective over all ranks, which share the reading. Damaged checkpoints are skipped in favour of older ones.

    Args:
        find: Returns the checkpoint to read, given the folders that are known to be damaged. Called on rank 0.
        config: `verify_integrity` selects whether contents are verified, or only sizes.
        load: Called with the source, the checkpoint, and what `verified_reads` has to verify. After a
            DamagedWhileReadError it is called with an older checkpoint, which must replace all that it has changed.
        while_reading: Let `load` verify the data files while it reads them, which saves a second reading.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: Raised by `find`.
    """
    rejected: dict[Path, str] = {}
    overwritten: set[str] = set()
    while True:
        source, chosen = on_rank_zero(lambda: find(rejected))
        if chosen is None:
            return load(source, chosen, Verification())
        with reader_lock(chosen.path):
            manifest, damage = _verified(chosen.path, config, data_files=not while_reading)
            if damage is None:
                try:
                    unverified = manifest if while_reading else None
                    return load(source, chosen, Verification(manifest=unverified, overwritten=overwritten))
                except DamagedWhileReadError as error:
                    damage = error.problem
                except CheckpointReadError:  # on all ranks
                    damage = _verified(chosen.path, config, data_files=True)[1] if while_reading else None
                    if damage is None:
                        raise
        rejected[chosen.path] = damage


def _verified(
    path: Path, config: CheckpointConfig, *, data_files: bool
) -> tuple[Manifest | None, str | None]:
    """Return the manifest, if contents are verified, and the problems that all ranks together find. Collective.

    Args:
        path: Folder of the checkpoint.
        config: Its `verify_integrity` is used.
        data_files: Verify the data files, too.
    """

    def manifest_or_problem() -> Manifest | str | None:
        if not path.is_dir():
            return "was deleted meanwhile"
        try:
            return read_manifest(path) if config.verify_integrity else None
        except (ManifestError, OSError) as error:
            return file_problem(error, MANIFEST)

    manifest = on_rank_zero(manifest_or_problem)
    if manifest is None or isinstance(manifest, str):
        return None, manifest
    files = tuple(entry for entry in manifest.files if data_files or not is_data_file(entry.name))
    share = files_of_rank(replace(manifest, files=files), rank=own_rank(), world_size=number_of_ranks())
    problems = gather(find_hash_mismatches(path, share))
    return manifest, first_of([line for lines in problems for line in lines]) or None


def find_checkpoint(
    config: CheckpointConfig, rejected: Mapping[Path, str] | None = None, *, may_be_empty: bool = False
) -> tuple[Source, SelectedCheckpoint | None]:
    """Return the kind of load that this configuration results in, and the checkpoint. Not collective.

    `load` takes precedence over `pretrained_checkpoint`; a non-persistent checkpoint over an older persistent one; an
    explicit step or folder over all others. `rejected` maps folders that are known to be damaged to the reason. A
    `load` other than the `save` of the same section must hold a checkpoint, unless `may_be_empty`.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: See `load_checkpoint`.
    """
    if config.load is not None:
        chosen = _to_resume(config, config.load, rejected or {})
        if chosen is not None:
            fresh = config.finetune or chosen.path.name == RELEASE
            return ("weights" if fresh else "resumed"), chosen
        if not may_be_empty and not is_same_folder(config.load, config.save):
            reason = why_no_source(config.load, resume=not config.finetune) or "no checkpoint"
            raise CheckpointNotFoundError(
                f"checkpoint.load: {reason}. A run that names its source does not start from random weights: correct "
                "the path, or set checkpoint.load to the folder of checkpoint.save, which may be empty."
            )
    if config.pretrained_checkpoint is not None:
        return find_pretrained(config.pretrained_checkpoint, rejected)
    if config.exit_on_missing_checkpoint and config.load is not None:
        raise CheckpointNotFoundError(
            f"checkpoint.load: no checkpoint in {config.load}, and exit_on_missing_checkpoint forbids to start "
            "from random weights. Name another folder, or set it to false."
        )
    return "nothing", None


def find_pretrained(
    path: str, rejected: Mapping[Path, str] | None = None
) -> tuple[Literal["weights"], SelectedCheckpoint]:
    """Return the checkpoint with the initial weights. Not collective.

    Raises:
        CheckpointNotFoundError: There is none.
        IncompleteCheckpointError: The path names one checkpoint, and it is incomplete.
    """
    named, path = path, source_of_weights(path)
    _reject_foreign("pretrained_checkpoint", path, resume=False)
    chosen = select_checkpoint(path, wanted=WEIGHTS, rejected=rejected)
    if chosen is None and named != path:
        raise CheckpointNotFoundError(
            f"checkpoint.pretrained_checkpoint: {named} holds a model in Hugging Face format, which is not converted "
            "yet. Call mb_checkpoint.formats.converted_weights.convert_once, as mb finetune does, or mb import-hf."
        )
    if chosen is None:
        reason = why_no_source(path, resume=False) or f"no checkpoint in {path}"
        raise CheckpointNotFoundError(
            f"checkpoint.pretrained_checkpoint: {reason}. Name a folder with trackers and iter_* folders, or one "
            "iter_* folder."
        )
    return "weights", chosen


def _reject_foreign(field: str, path: str, *, resume: bool) -> None:
    """Reject a folder that another program wrote in a format that is not supported."""
    foreign = recognize_foreign(Path(path))
    if foreign is not None and not is_readable_here(Path(path), resume=resume):
        raise CheckpointNotFoundError(
            f"checkpoint.{field}: {path} holds {foreign.kind}. {foreign.advice(resume=resume)}."
        )


def resumes_by_tracker(config: CheckpointConfig) -> bool:
    """Return whether a run is resumed from the newest checkpoint, without an explicit step or checkpoint folder."""
    named = config.ckpt_step is not None or (
        config.load is not None and is_iteration_directory(Path(config.load))
    )
    return not named and not config.finetune


def _to_resume(
    config: CheckpointConfig, load: str, rejected: Mapping[Path, str]
) -> SelectedCheckpoint | None:
    _reject_foreign("load", load, resume=not config.finetune)
    wanted = WEIGHTS if config.finetune else RESUMABLE
    if config.ckpt_step is not None or is_iteration_directory(Path(load)):
        return select_checkpoint(load, step=config.ckpt_step, wanted=wanted, rejected=rejected)
    candidates: list[SelectedCheckpoint] = []
    trouble: list[CheckpointNotFoundError] = []
    for root in (Path(load), *non_persistent_roots(config)):
        try:
            chosen = select_checkpoint(root, wanted=wanted, rejected=rejected)
        except CheckpointNotFoundError as error:
            trouble.append(error)
            continue
        if chosen is not None:
            candidates.append(chosen)
    if not candidates:
        if trouble:
            raise trouble[0]
        return None
    return _newest(candidates, trouble)


def _newest(
    candidates: list[SelectedCheckpoint], trouble: list[CheckpointNotFoundError]
) -> SelectedCheckpoint:
    """Return the selection of the highest step; of the same step the persistent one, which is first in the list."""
    best = max(candidates, key=lambda candidate: -1 if candidate.step is None else candidate.step)
    passed = [entry for candidate in candidates for entry in candidate.skipped]
    passed += [
        SkippedCheckpoint(path=candidate.path, reason=f"older than {best.path}")
        for candidate in candidates
        if candidate is not best
    ]
    passed += [
        SkippedCheckpoint(path=Path(str(error).partition(":")[0]), reason=str(error)) for error in trouble
    ]
    return replace(best, skipped=tuple(passed))
