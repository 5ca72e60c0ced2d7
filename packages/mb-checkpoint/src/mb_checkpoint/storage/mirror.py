"""Storage of a run: newer checkpoints are fetched from it before a load, and complete ones are copied to it."""

import secrets
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from mb_checkpoint.collectives import number_of_ranks, on_rank_zero, own_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import LoadedCheckpoint
from mb_checkpoint.errors import DamagedCheckpointError, NoIntactCheckpointError, StorageError
from mb_checkpoint.formats.foreign import is_same_folder
from mb_checkpoint.formats.layout import step_of
from mb_checkpoint.load.select import select_checkpoint
from mb_checkpoint.storage.checkpoints import (
    StoredCheckpoint,
    check_storage_writable,
    find_stored,
    read_latest,
    set_latest,
)
from mb_checkpoint.storage.fetch import fetch_stored
from mb_checkpoint.storage.owner import claim_storage
from mb_checkpoint.storage.storage import open_storage
from mb_checkpoint.storage.uploader import Destination, StorageUploader, UploadRanks


class StorageMirror:
    """Copies of the persistent checkpoints of a run in a storage (`checkpoint.storage`).

    Args:
        config: The section, with `storage` and `save`.
        log: Receives a line per fetched and copied checkpoint, on rank 0; also from a thread.

    Raises:
        StorageError: See `open_storage`.
    """

    def __init__(self, config: CheckpointConfig, *, log: Callable[[str], object]) -> None:
        self._config = config
        self._root = Path(str(config.save))
        self._log = log
        self._address = str(config.storage)
        self._storage = open_storage(self._address, config.storage_options)
        self._rejected: list[str] = []
        self._uploader: StorageUploader | None = None

    def _claim(self) -> StorageUploader:
        """Make the storage that of this run, before anything is read from it or copied there. Collective once."""
        if self._uploader is None:
            name = f"checkpoint.storage: {self._address}"
            owner, token = on_rank_zero(
                lambda: (claim_storage(self._storage, self._root, name=name), secrets.token_hex(4))
            )
            destination = Destination(
                address=self._address,
                options=self._config.storage_options,
                keep=-1 if self._config.most_recent_k is None else self._config.most_recent_k,
                retain_interval=self._config.save_retain_interval,
                owner=owner,
            )
            self._uploader = StorageUploader(destination, log=self._log, ranks=_ranks(f"upload/{token}"))
        return self._uploader

    def fetch(self, *, than: int | None = None) -> bool:
        """Fetch the checkpoint to resume from into the folder of the run if the storage has a newer one.

        Returns whether one was fetched.

        Collective; the ranks share the reading, and the folder must be the same one on every rank. Does nothing if the
        run starts from another folder than the one it saves to.

        Args:
            than: Step that the newer one is compared with; None: the newest complete one in the folder.

        Raises:
            StorageError: The storage could not be read: a run that starts without its newest checkpoint would repeat
                steps, and write over what the storage names as the newest.
            OSError: The folder could not be written.
        """
        if not is_same_folder(self._config.load, self._config.save) or self._config.finetune:
            return False
        while True:
            stored = on_rank_zero(lambda: self._newer(than))
            if stored is None:
                return False
            damage = fetch_stored(stored, self._storage, self._root)
            if not damage:
                if own_rank() == 0:
                    size = f"{stored.manifest.total_bytes / 2**20:.1f} MiB"
                    self._log(f"fetched {self._address}/{stored.folder} ({size})")
                return True
            self._rejected.append(stored.folder)
            if own_rank() == 0:
                self._log(f"skipped {self._address}/{stored.folder}: {damage}")

    def load(self, read: Callable[[], LoadedCheckpoint]) -> LoadedCheckpoint:
        """Read the newest intact checkpoint of folder and storage. Collective; raises as `fetch` and `read`.

        Args:
            read: Loads the newest intact checkpoint of the folder. Called again if it found damage there, and the
                storage has an intact checkpoint of a later step than the one that was loaded.

        Raises:
            StorageError: The storage belongs to another run, or holds checkpoints of later steps and the run did not
                name its step.
        """
        self._claim()
        self.fetch()
        try:
            loaded = read()
        except NoIntactCheckpointError:
            if not self.fetch(than=-1):
                raise
            loaded = read()
        if loaded.skipped and self.fetch(than=loaded.step):
            loaded = read()
        is_stored = on_rank_zero(lambda: self._on_loaded(loaded.step))
        if loaded.path is not None and not is_stored:
            self.on_saved(loaded.path)
        return loaded

    def _on_loaded(self, step: int) -> bool:
        """Record in the storage which step the run has resumed from; return whether it is there. For rank 0."""
        check_storage_writable(self._storage)
        latest, _ = read_latest(self._storage)
        newest = find_stored(self._storage, rejected=self._rejected)
        if self._config.ckpt_step is None and newest is not None and newest.step > step:
            raise StorageError(
                f"checkpoint.storage: {self._address} is at step {newest.step}, and this run starts at step {step}: "
                "its checkpoints would replace those of another run. Choose another URL, or, to continue from an older "
                "step, set checkpoint.load to the folder of checkpoint.save and name checkpoint.ckpt_step."
            )
        if latest is None or latest < step:
            return False
        stored = find_stored(self._storage, step=step)
        if latest > step:
            set_latest(self._storage, step=step, folder=None if stored is None else stored.folder)
        return stored is not None

    def complete(self, last: Path) -> None:
        """Copy the last checkpoint of a complete run, if the storage lacks it, and wait for the copy. Collective.

        Does nothing if the checkpoint is in another folder than that of the run.

        Raises:
            StorageError: The storage could not be read, or belongs to another run.
        """
        if not is_same_folder(str(last.parent), str(self._root)):
            return
        self._claim()
        if on_rank_zero(lambda: self._lacks(step_of(last) or 0)):
            self.on_saved(last)
            self.finish()

    def _lacks(self, step: int) -> bool:
        newest = find_stored(self._storage)
        return newest is None or newest.step < step

    def on_saved(self, path: Path) -> None:
        """Copy a committed checkpoint in the background if it is a persistent one of this run. For all ranks."""
        if is_same_folder(str(path.parent), str(self._root)):
            self._claim().submit(path)

    def finish(self) -> None:
        """Wait for the copy in progress, of which each rank makes a part."""
        if self._uploader is not None:
            if self._uploader.busy and own_rank() == 0:
                self._log(f"waiting for the copy to {self._address}")
            self._uploader.wait()

    def stop(self) -> None:
        """Kill the copy in progress."""
        if self._uploader is not None:
            self._uploader.stop()

    def _newer(self, than: int | None) -> StoredCheckpoint | None:
        """Return the checkpoint in the storage that is to be fetched; for rank 0."""
        step = self._config.ckpt_step
        stored = find_stored(self._storage, step=step, rejected=self._rejected)
        if stored is None:
            return None
        if than is not None:
            return stored if stored.step > than else None
        try:
            local_checkpoint = select_checkpoint(self._root, step=step)
        except (DamagedCheckpointError, FileNotFoundError):
            return stored
        return stored if local_checkpoint is None or (local_checkpoint.step or 0) < stored.step else None


def complete_storage(config: CheckpointConfig, last: Path, *, log: Callable[[str], object]) -> None:
    """Copy the last checkpoint of a complete run to `checkpoint.storage`, if its copy was interrupted. Collective.

    Arguments and errors as `StorageMirror` and its `complete`; without a storage, nothing is done.
    """
    if config.storage is not None:
        StorageMirror(config, log=log).complete(last)


def _ranks(name: str) -> UploadRanks | None:
    if number_of_ranks() == 1:
        return None
    store = dist.distributed_c10d._get_default_store()
    return UploadRanks(store=store, rank=own_rank(), world_size=number_of_ranks(), name=name)
