"""Recognition of checkpoint folders, including those of other programs, by file names. Standard library only."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path

from mb_checkpoint.formats.layout import (
    FORMAT_MARKER,
    MANIFEST,
    RELEASE,
    RUN_CONFIG,
    TENSOR_INDEX,
    TRAIN_STATE,
    has_counters_in_arguments,
    is_convertible,
    is_hugging_face_directory,
    legacy_ranks,
    steps_in,
    why_not_a_checkpoint,
)

MAX_ENTRIES = 500
"""Maximum number of entries of a folder that are read: a folder named by mistake may hold millions."""

_PEFT_MARK = "adapter_config.json"
_BRIDGE_TARGET = re.compile(rb"_target_: *['\"]?megatron\.bridge\.")
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheckpoint:
    """Checkpoint written by another program."""

    kind: str
    """Program and format, as a noun phrase."""
    to_load: str
    """Advice for resuming a run from it."""
    to_start: str
    """Advice for using its weights as initial weights."""

    def advice(self, *, resume: bool) -> str:
        """Return the advice for resuming from it, or for starting from its weights."""
        return self.to_load if resume else self.to_start


def recognize_foreign(path: Path) -> ForeignCheckpoint | None:
    """Return the foreign checkpoint at `path`; None for this package's own checkpoints and for other folders.

    Reads file names, and the beginning of a `run_config.yaml`. A folder with steps is recognized by its newest one.

    Raises:
        OSError: The folder cannot be read.
    """
    if not path.is_dir():
        return None
    for folder in (path, *_step_folders(path)):
        recognized = _recognize_one(folder, named=path)
        if recognized is not None:
            return recognized
    return None


def _recognize_one(folder: Path, *, named: Path) -> ForeignCheckpoint | None:
    if (folder / MANIFEST).is_file():
        return None
    if (folder / _PEFT_MARK).is_file():
        return _peft_adapters(folder)
    if is_hugging_face_directory(folder):
        return _hugging_face(folder)
    if ranks := legacy_ranks(folder):
        return _legacy_megatron(ranks[0])
    return _recognize_distributed(folder, named=named) if (folder / TENSOR_INDEX).is_file() else None


def _recognize_distributed(folder: Path, *, named: Path) -> ForeignCheckpoint | None:
    if (folder / RUN_CONFIG).is_file() and not written_by_bridge(folder / RUN_CONFIG):
        return None
    program = "Megatron-Bridge" if (folder / RUN_CONFIG).is_file() else "Megatron-LM"
    if (folder / FORMAT_MARKER).is_file():
        return _distributed(program, folder, named=named, format="torch_dist")
    if (folder / RUN_CONFIG).is_file():
        return _distributed(program, folder, named=named, format="fsdp_dtensor")
    return None if (folder / TRAIN_STATE).is_file() else _torch_dcp(folder, named=named)


def _hugging_face(folder: Path) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        kind="a model in Hugging Face format",
        to_load="A run cannot be resumed from it. Start from its weights with "
        f"checkpoint.pretrained_checkpoint={folder}, without checkpoint.load",
        to_start="Save it with safe serialization (*.safetensors), and set "
        f"checkpoint.pretrained_checkpoint={folder}",
    )


def _peft_adapters(folder: Path) -> ForeignCheckpoint:
    steps = (
        "They are not a complete model: merge them into it with PEFT's merge_and_unload() and save_pretrained(), "
        "and set checkpoint.pretrained_checkpoint to the result"
    )
    return ForeignCheckpoint(
        kind=f"adapters of Hugging Face PEFT ({folder / _PEFT_MARK})", to_load=steps, to_start=steps
    )


def _legacy_megatron(ranks: Path) -> ForeignCheckpoint:
    steps = "Nothing needs to be done: ranks with the tensor-, pipeline- and expert-parallel sizes of its run read it"
    kind = f"a Megatron-LM checkpoint in the legacy format `torch` ({ranks.parent.name}/{ranks.name})"
    return ForeignCheckpoint(kind=kind, to_load=steps, to_start=steps)


def _distributed(program: str, folder: Path, *, named: Path, format: str) -> ForeignCheckpoint:
    if (folder / TRAIN_STATE).is_file() or has_counters_in_arguments(folder):
        to_load = "Nothing needs to be done: a run resumes from it"
    else:
        to_load = (
            f"It has no {TRAIN_STATE}, so a run cannot be resumed from it. Keep it, and start from its weights with "
            f"checkpoint.pretrained_checkpoint={named}, without checkpoint.load"
        )
    return ForeignCheckpoint(
        kind=f"a {program} checkpoint in the format {format} ({folder.name})",
        to_load=to_load,
        to_start="Nothing needs to be done: its weights are read",
    )


def _torch_dcp(folder: Path, *, named: Path) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        kind=f"a torch.distributed.checkpoint without {TRAIN_STATE} ({folder.name}), as Megatron-LM's fsdp_dtensor "
        "and torchtitan write it",
        to_load="A run cannot be resumed from it: Megatron-LM has its counters among its arguments, which are only "
        "read in torch_dist and torch. Keep it; where Megatron-FSDP wrote it, start from its weights with "
        f"checkpoint.pretrained_checkpoint={named} and ddp.use_megatron_fsdp=true, without checkpoint.load",
        to_start="Where Megatron-FSDP wrote it, its weights are read with ddp.use_megatron_fsdp=true; else export them "
        "in Hugging Face format with the program that wrote it, and start from those",
    )


def written_by_bridge(run_config: Path) -> bool:
    """Return whether a run_config.yaml is one of Megatron-Bridge."""
    if not run_config.is_file():
        return False
    with run_config.open("rb") as file:
        return _BRIDGE_TARGET.search(file.read(_HEAD_BYTES)) is not None


def _step_folders(root: Path) -> list[Path]:
    """Return folders below a root that may be checkpoints: Megatron's names, newest first, then others."""
    release = root / RELEASE
    named = [*steps_in(root).values(), *([release] if release.is_dir() else [])]
    return [*named, *_children(root, re.compile(r"(?:step|global_step|checkpoint)[-_]?\d+"))]


def _children(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    matching = [entry for entry in islice(folder.iterdir(), MAX_ENTRIES) if name.fullmatch(entry.name)]
    return (entry for entry in sorted(matching, reverse=True) if entry.is_dir())


def why_no_source(named: str, *, resume: bool) -> str | None:
    """Return why nothing can be loaded from a folder that the configuration names; None if a load is possible.

    Args:
        named: Value of `checkpoint.load` or `checkpoint.pretrained_checkpoint`.
        resume: Whether a run is to be resumed, with counters; False: weights suffice.
    """
    path = Path(named)
    try:
        foreign = recognize_foreign(path)
        if is_convertible(path) and not resume:
            return None  # converted before it is read
        if foreign is not None and not is_readable_here(path, resume=resume):
            return f"{named} holds {foreign.kind}. {foreign.advice(resume=resume)}"
        exists = path.exists()
        problem = why_not_a_checkpoint(path) if exists else "no such folder"
        if problem is None:
            return None
        nearest = nearest_folder(path)
    except OSError as error:
        return f"{named} cannot be read ({type(error).__name__}: {error.strerror})"
    text = f"{named} {problem}" if exists else f"no such folder: {named}"
    nearest_is_empty = nearest is None or why_not_a_checkpoint(nearest) is not None
    # one empty folder in place of another is no help, and neither is a parent of the path
    if nearest is None or nearest in path.parents or (nearest_is_empty and exists):
        return text
    holds = "holds no checkpoint" if nearest_is_empty else "holds checkpoints"
    return f"{text}; the nearest existing folder, {nearest}, {holds}"


def is_readable_here(path: Path, *, resume: bool) -> bool:
    """Return whether a checkpoint of another program at or below a path has all files that a load needs."""
    folders = (path, *steps_in(path).values(), path / RELEASE)
    return any(
        bool(legacy_ranks(folder))
        or ((folder / TENSOR_INDEX).is_file() and (not resume or _has_counters(folder)))
        for folder in folders
    )


def _has_counters(folder: Path) -> bool:
    released = folder.name == RELEASE  # starts at step 0
    return released or (folder / TRAIN_STATE).is_file() or has_counters_in_arguments(folder)


def nearest_folder(path: Path) -> Path | None:
    """Return the existing folder that a path may mean: one with a checkpoint first, else one with a similar name.

    Candidates are the siblings and children of `path`, and the `checkpoints` folder of each. Without a candidate,
    returns the nearest existing parent of `path`, or None if `path` exists.
    """
    existing = next((folder for folder in (path, *path.parents) if folder.is_dir()), None)
    if existing is None:
        return None
    children = [entry for entry in islice(existing.iterdir(), MAX_ENTRIES) if entry.is_dir()]
    if existing == path and path.parent != path:
        children += [
            entry for entry in islice(path.parent.iterdir(), MAX_ENTRIES) if entry.is_dir() and entry != path
        ]
    candidates = [
        folder for child in children for folder in (child, child / "checkpoints") if folder.is_dir()
    ]
    with_checkpoint = [folder for folder in candidates if why_not_a_checkpoint(folder) is None]
    if with_checkpoint:
        return max(with_checkpoint, key=lambda folder: SequenceMatcher(None, str(folder), str(path)).ratio())
    if existing == path:
        return None
    missing = path.relative_to(existing).parts[0]
    similar = get_close_matches(missing, [child.name for child in children], n=1)
    return existing / similar[0] if similar else existing


def is_same_folder(first: str | None, second: str | None) -> bool:
    """Return whether two paths name the same folder, which need not exist."""
    return first is not None and second is not None and Path(first).resolve() == Path(second).resolve()
