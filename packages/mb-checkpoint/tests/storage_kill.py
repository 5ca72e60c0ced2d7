"""Copying checkpoints to a storage in a process that is killed at its n-th access; prints nothing.

Usage: storage_kill.py ADDRESS CHECKPOINT KEEP NUMBER BEFORE RANKS
"""

import json
import os
import signal
import sys
from pathlib import Path

from mb_checkpoint.storage import checkpoints as storage_checkpoints
from mb_checkpoint.storage.owner import read_owner
from mb_checkpoint.storage.storage import open_storage


class KilledStorage:
    """Storage whose process is killed at an access, before or after it; counts the accesses."""

    def __init__(self, storage, number, *, before):
        self._storage, self._number, self._before, self.count = storage, number, before, 0

    def __getattr__(self, name):
        method = getattr(self._storage, name)

        def call(*arguments):
            wanted, self.count = self.count == self._number, self.count + 1
            if wanted and self._before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(*arguments)
            if wanted:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def main():
    address, checkpoint, keep, number, before, ranks = sys.argv[1:]
    storage_checkpoints.THREADS = 1  # the order of accesses does not change
    storage = KilledStorage(open_storage(address), int(number), before=before == "before")
    saved, world_size = Path(checkpoint), int(ranks)
    owner = None if world_size == 1 else read_owner(storage._storage)
    for rank in range(world_size if owner else 0):
        storage_checkpoints.upload_share(
            saved, storage, owner=owner, rank=rank, world_size=world_size, read_back=True
        )
    storage_checkpoints.upload_checkpoint(
        saved, storage, keep=int(keep), owner=owner, shared=owner is not None
    )
    print(json.dumps(storage.count))


if __name__ == "__main__":
    main()
