"""Copying checkpoints to a storage in a process that is killed at its n-th access; prints nothing.

Usage: storage_kill.py ADDRESS CHECKPOINT KEEP NUMBER BEFORE
"""

import json
import os
import signal
import sys
from pathlib import Path

from mb_checkpoint.storage import checkpoints as storage_checkpoints
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
    address, checkpoint, keep, number, before = sys.argv[1:]
    storage_checkpoints.THREADS = 1  # the order of accesses does not change
    storage = KilledStorage(open_storage(address), int(number), before=before == "before")
    storage_checkpoints.upload_checkpoint(Path(checkpoint), storage, keep=int(keep))
    print(json.dumps(storage.count))


if __name__ == "__main__":
    main()
