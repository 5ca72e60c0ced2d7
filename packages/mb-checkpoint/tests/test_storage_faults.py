"""Uploads to a storage that fails now and then, is slow, lists what is stale, and cuts files short: nothing is lost."""

import itertools
import random
import threading
import time
from contextlib import suppress

import complete_checkpoint
import pytest

from mb_checkpoint import (
    CheckpointNotFoundError,
    fetch_checkpoint,
    upload_checkpoint,
    verify_checkpoint,
)
from mb_checkpoint.errors import StorageError
from mb_checkpoint.storage.storage import open_storage


class FaultyStorage:
    """Storage that behaves as the wrapped one, except for its faults; correct while `is_healthy`."""

    is_healthy = False

    def __init__(self, storage):
        self.storage = storage

    def before(self, method):
        """Fail, wait, or do nothing before a call."""

    def __getattr__(self, method):
        call = getattr(self.storage, method)

        def faulty(*arguments):
            self.before(method)
            return call(*arguments)

        return faulty


class FailsEachThirdCall(FaultyStorage):
    def __init__(self, storage):
        super().__init__(storage)
        self.calls, self.lock = itertools.count(1), threading.Lock()

    def before(self, method):
        with self.lock:
            number = next(self.calls)
        if not self.is_healthy and number % 3 == 0:
            raise StorageError(f"the storage does not answer ({method})")


class Slow(FaultyStorage):
    def before(self, method):
        time.sleep(0.0 if self.is_healthy else 0.05)


class StaleListing(FaultyStorage):
    """Lists what was there at the previous listing."""

    def __init__(self, storage):
        super().__init__(storage)
        self.previous = {}

    def sizes(self, prefix=""):
        now = dict(self.storage.sizes())
        shown = now if self.is_healthy else self.previous
        self.previous = now
        return {name: size for name, size in shown.items() if name.startswith(prefix)}


class CutsShort(FaultyStorage):
    """Stores a part of some data files, and reports success."""

    def __init__(self, storage):
        super().__init__(storage)
        self.random = random.Random(4)

    def put(self, source, name):
        if not self.is_healthy and name.endswith(".distcp") and self.random.random() < 0.4:
            content = source.read_bytes()
            source = source.with_name("cut")
            source.write_bytes(content[: len(content) // 2])
            self.storage.put(source, name)
            source.unlink()
        else:
            self.storage.put(source, name)


class ListsNothing(FaultyStorage):
    """Has no listing yet, as a storage that is only consistent after a while; files are read by name."""

    def sizes(self, prefix=""):
        return self.storage.sizes(prefix) if self.is_healthy else {}


class AllFaults:
    """All faults at once."""

    def __init__(self, storage):
        self.layers = []
        for kind in (CutsShort, StaleListing, Slow, FailsEachThirdCall):
            storage = kind(storage)
            self.layers.append(storage)

    def __getattr__(self, method):
        return getattr(self.layers[-1], method)

    @property
    def is_healthy(self):
        return self.layers[0].is_healthy

    @is_healthy.setter
    def is_healthy(self, value):
        for layer in self.layers:
            layer.is_healthy = value


def fetched_step(storage, folder, *, none=0):
    """Return the step of the checkpoint that a machine with an empty disk fetches, after its verification.

    With `none=0` there may be none yet.
    """
    try:
        path = fetch_checkpoint(storage, folder)
    except CheckpointNotFoundError:
        assert none == 0
        return 0
    assert verify_checkpoint(folder)[path] == []
    return int(path.name.removeprefix("iter_"))


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("kind", [FailsEachThirdCall, Slow, StaleListing, ListsNothing, CutsShort, AllFaults])
def test_a_machine_with_an_empty_disk_finds_an_intact_checkpoint_after_every_upload(tmp_path, kind, keep):
    """The newest one that was acknowledged, unless the storage has cut it short; and never an older one than before."""
    faulty = kind(open_storage(str(tmp_path / "storage")))
    acknowledged = found = 0
    for step in range(1, 9):
        saved = complete_checkpoint.save(tmp_path / "run", step)
        with suppress(StorageError):
            upload_checkpoint(saved, faulty, keep=keep)
            acknowledged = step
        faulty.is_healthy = True
        previous, found = found, fetched_step(faulty, tmp_path / f"machine{step}", none=found)
        assert found >= previous
        assert found >= acknowledged or kind in (CutsShort, AllFaults)
        faulty.is_healthy = step == 7
    faulty.is_healthy = True
    assert found == fetched_step(faulty, tmp_path / "last") == 8
