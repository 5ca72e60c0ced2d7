"""Small complete checkpoints for tests that need no Megatron: one tensor, written by torch itself."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.commit import commit, fsync_and_write_manifest, open_staging
from mb_checkpoint.state.train_state import encode_train_state


def fill(directory: Path, step: int, tensors: dict | None = None) -> Path:
    """Write the files of a checkpoint to a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(tensors or {"weight": torch.full((4,), float(step))}, checkpoint_id=directory, no_dist=True)
    (directory / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    )
    (directory / "train_state.pt").write_bytes(encode_train_state({"step": step}))
    return directory


def save(
    root: Path,
    step: int,
    tensors: dict | None = None,
    content: dict | None = None,
    files: dict[str, str] | None = None,
) -> Path:
    """Write and commit a checkpoint."""
    staging = fill(open_staging(root, step), step, tensors)
    for name, text in (files or {}).items():
        (staging / name).write_text(text)
    fsync_and_write_manifest(staging, Manifest(step=step, files=(), content=content or {}))
    return commit(root, step, staging)


def flip_bit(directory: Path) -> None:
    """Change a bit of the stored tensors, which a comparison of sizes does not detect."""
    (data,) = directory.glob("*.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 64
    data.write_bytes(content)


UNPRIVILEGED_UID = 65534


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Remove all permissions of a file or folder below the working directory; root becomes an unprivileged user."""
    mode, root = path.stat().st_mode, os.geteuid() == 0
    if root:
        for each in (Path(), *Path().rglob("*")):
            os.chown(each, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    path.chmod(0)
    try:
        if root:
            os.seteuid(UNPRIVILEGED_UID)
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(mode)
