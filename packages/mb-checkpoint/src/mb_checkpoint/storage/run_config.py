"""Settings of the checkpoint that a run fetches from its storage, for every command of a run, ahead of torch."""

from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.foreign import is_same_folder
from mb_checkpoint.formats.layout import RUN_CONFIG
from mb_checkpoint.formats.manifest import hash_chunks
from mb_checkpoint.storage.checkpoints import find_stored
from mb_checkpoint.storage.owner import is_of_run, read_small
from mb_checkpoint.storage.storage import open_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRunConfig:
    """run_config.yaml of a checkpoint in a storage."""

    source: str
    """Address of the checkpoint."""
    content: str


def stored_run_config(section: CheckpointConfig) -> StoredRunConfig | None:
    """Return the settings of the checkpoint that a run with an empty disk fetches from `checkpoint.storage`.

    None if it fetches nothing, and if the storage belongs to another run, which the load rejects. Not collective.

    Raises:
        StorageError: The storage failed.
    """
    if section.storage is None or section.finetune or not is_same_folder(section.load, section.save):
        return None
    storage = open_storage(section.storage, section.storage_options)
    if not is_of_run(storage, Path(str(section.save))):
        return None
    damaged: list[str] = []
    while (stored := find_stored(storage, step=section.ckpt_step, rejected=damaged)) is not None:
        entry = next((each for each in stored.manifest.files if each.name == RUN_CONFIG), None)
        if entry is None:
            return None
        content = read_small(storage, f"{stored.folder}/{RUN_CONFIG}", largest=entry.size)
        if content is not None and hash_chunks([content], like=entry) == entry:
            text = content.decode(errors="replace")
            return StoredRunConfig(source=f"{section.storage}/{stored.folder}", content=text)
        damaged.append(stored.folder)  # the load skips it, too
    return None
