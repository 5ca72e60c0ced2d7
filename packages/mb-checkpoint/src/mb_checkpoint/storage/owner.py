"""The run that a storage belongs to. It is compared before a checkpoint is copied there, and before one is deleted.

A run has an identity, `.storage_run` in the folder of its checkpoints. The storage has it in `run.json`, together with
the process that writes there:

* A run with another identity is rejected. It would resume from the other run, and delete its checkpoints.
* A folder without an identity takes over that of the storage if the run there had the same path: a new or empty disk.
* A start takes the storage over from an earlier start of the same run, which copies nothing there from then on.
"""

import json
import os
import re
import secrets
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mb_checkpoint.errors import StorageError
from mb_checkpoint.formats.layout import STORAGE_RUN
from mb_checkpoint.save.commit import write_atomically
from mb_checkpoint.storage.storage import Storage

OWNER = "run.json"
"""Name of the file in the storage."""
LARGEST_RECORD = 1 << 16
"""Bytes of the largest small file of a storage that is read."""
_RUN = re.compile(r"[0-9a-f]{12}")
_START_TIME = 19  # field of /proc/PID/stat after the name of the program


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOwner:
    """Run and process that a storage belongs to."""

    run: str
    """Identity of the run, 12 hexadecimal digits."""
    folder: str
    """Absolute path of its folder of checkpoints."""
    host: str
    """Name of the machine."""
    process: str
    """Number and start time of the process that writes; empty for a copy by hand."""

    def __str__(self) -> str:
        """Return the run as part of a message."""
        return f"the run {self.run} in {self.folder} on {self.host}"


def claim_storage(storage: Storage, root: Path, *, name: str, exclusive: bool = True) -> StorageOwner:
    """Make a storage that of the run in a folder, and return its record.

    Args:
        storage: The storage.
        root: Folder of the run's checkpoints, which need not exist.
        name: Name of the storage in messages.
        exclusive: This process writes from now on; False for a single copy, which changes no existing record.

    Raises:
        StorageError: It belongs to another run, or another process of this machine writes there; or it failed.
        OSError: The identity could not be written to the folder.
    """
    current = read_owner(storage)
    folder, host = str(root.absolute()), socket.gethostname()
    run = _known_run(root, current) or secrets.token_hex(6)
    owner = StorageOwner(
        run=run, folder=folder, host=host, process=_process(os.getpid()) if exclusive else ""
    )
    if current is not None:
        if current.run != owner.run:
            raise StorageError(
                f"{name} belongs to {current}, and this is the run in {folder} on {host}: each would delete the "
                "other's checkpoints. Choose another URL, or, to continue that run here, first fetch it into a "
                "new folder with `mb-checkpoint fetch URL DIR`."
            )
        if not exclusive:
            return current
        if current.host == host and current.process != owner.process and _is_running(current.process):
            raise StorageError(
                f"{name} is in use by process {current.process.partition('-')[0]} of {current}, and this is process "
                f"{os.getpid()} in {folder}: two would delete each other's checkpoints. Wait until it has ended, or "
                "choose another URL."
            )
    put_json(storage, OWNER, asdict(owner))
    remember_run(root, run)
    return owner


def _known_run(root: Path, owner: StorageOwner | None) -> str | None:
    """Return the identity of the run in a folder, which an empty one takes over from a storage; None for a new run."""
    local_run = run_of_folder(root)
    if local_run is None and owner is not None and owner.folder == str(root.absolute()):
        return owner.run
    return local_run


def is_of_run(storage: Storage, root: Path) -> bool:
    """Return whether `claim_storage` would find the run in a folder to be that of a storage, or the storage to be free.

    Raises:
        StorageError: The storage failed, or its record is damaged.
    """
    owner = read_owner(storage)
    return owner is None or _known_run(root, owner) == owner.run


def require_owner(storage: Storage, owner: StorageOwner) -> None:
    """Check that a storage still belongs to this process.

    Raises:
        StorageError: Another start of the run, or another run, has taken it over; or the storage failed.
    """
    current = read_owner(storage)
    if current is None:
        put_json(storage, OWNER, asdict(owner))
    elif (current.run, current.process, current.host) != (
        owner.run,
        owner.process,
        owner.host,
    ):
        raise StorageError(
            f"the storage was taken over by {current}, and this is {owner}, which copies and deletes nothing there any "
            "more. Stop one of the two, or give it another URL"
        )


def read_owner(storage: Storage) -> StorageOwner | None:
    """Return the run that a storage belongs to; None for an empty one, and for one of an older version.

    Raises:
        StorageError: The storage failed, or the record is damaged.
    """
    content = read_small(storage, OWNER)
    if content is None:
        return None
    try:
        body = json.loads(content)
        owner = StorageOwner(**body)
    except (ValueError, TypeError, RecursionError):
        owner = None
    if owner is None or not all(isinstance(value, str) and value.isprintable() for value in body.values()):
        raise _damaged()
    if not _RUN.fullmatch(owner.run):
        raise _damaged()
    return owner


def _damaged() -> StorageError:
    return StorageError(
        f"the storage has a damaged {OWNER}, which names the run that it belongs to. Delete the file if no run uses "
        "the storage, or choose another URL."
    )


def run_of_folder(root: Path) -> str | None:
    """Return the identity of the run in a folder of checkpoints; None if it has none."""
    try:
        with (root / STORAGE_RUN).open(encoding="ascii", errors="replace") as stream:
            text = stream.read(LARGEST_RECORD).strip()
    except OSError:
        return None
    return text if _RUN.fullmatch(text) else None


def remember_run(root: Path, run: str) -> None:
    """Write the identity of a run to its folder of checkpoints, unless it is there.

    Raises:
        OSError: It could not be written.
    """
    if run_of_folder(root) != run:
        root.mkdir(parents=True, exist_ok=True)
        write_atomically(root / STORAGE_RUN, f"{run}\n".encode())


def read_small(storage: Storage, name: str, *, largest: int = LARGEST_RECORD) -> bytes | None:
    """Return the content of a small file of a storage; None if there is none, or it is larger.

    Raises:
        StorageError: The storage failed.
    """
    chunks = storage.read(name)
    content = bytearray()
    for chunk in chunks or ():
        content += chunk
        if len(content) > largest:
            return None
    return None if chunks is None else bytes(content)


def put_json(storage: Storage, name: str, body: dict[str, Any]) -> None:
    """Store a small file.

    Raises:
        StorageError: The storage failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "file")
        file.write_text(json.dumps(body) + "\n", encoding="utf-8")
        storage.put(file, name)


def _process(number: int) -> str:
    """Return number and start time of a process, which no other one of this machine has."""
    try:
        status = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return str(number)
    return f"{number}-{status.rpartition(')')[2].split()[_START_TIME]}"


def _is_running(process: str) -> bool:
    number = process.partition("-")[0]
    return number.isdecimal() and Path(f"/proc/{number}").exists() and _process(int(number)) == process
