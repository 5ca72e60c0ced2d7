"""Names in received files lead to files below their own folder, or are rejected: manifests, indexes, storages."""

import hashlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import complete_checkpoint
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo

from mb_checkpoint import fetch_checkpoint, upload_checkpoint, verify_checkpoint
from mb_checkpoint.errors import IncompleteCheckpointError, ManifestError, StorageError
from mb_checkpoint.formats.manifest import (
    LARGEST,
    FileEntry,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from mb_checkpoint.load.select import find_problems, read_tensor_index
from mb_checkpoint.storage.checkpoints import find_stored, list_stored
from mb_checkpoint.storage.storage import open_storage
from mb_schema.file_names import FileNameError, path_inside

NO_FILES = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a//b",
    "a/",
    "./a",
    "a\0b",
    "a\nb",
    "x" * 2000,
]
NO_NAMES = [5, None, ["a"], True]


@pytest.mark.parametrize("name", [*NO_FILES, *NO_NAMES])
def test_what_is_no_file_below_the_folder_is_rejected(tmp_path, name):
    with pytest.raises(FileNameError):
        path_inside(tmp_path, name)


@given(st.one_of(st.text(), st.lists(st.sampled_from(["..", ".", "", "a", "/", "link", "é"])).map("/".join)))
def test_every_path_is_below_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "links"
    folder.mkdir(exist_ok=True)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to("..")
    try:
        path = path_inside(folder, name)
    except FileNameError:
        return
    assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    assert path != folder


def test_a_link_inside_the_folder_is_followed_and_one_that_leads_out_is_not(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("x")
    (folder / "inside").symlink_to("file")
    (folder / "outside").symlink_to("/etc/hostname")
    (folder / "loop").symlink_to("loop")
    assert path_inside(folder, "inside").read_text() == "x"
    with pytest.raises(FileNameError, match="a link that leads out of its folder"):
        path_inside(folder, "outside")
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert path_inside(linked, "file") == linked / "file"


def evil_manifest(name, **values):
    entry = FileEntry(
        **{"name": name, "size": 3, "checksum": "sha256:" + hashlib.sha256(b"abc").hexdigest(), **values}
    )
    return encode_manifest(Manifest(step=1, files=(entry,)))


def outside(tmp_path):
    return {path for path in tmp_path.rglob("*") if path.is_file() and "storage" not in path.parts}


@pytest.mark.parametrize("name", [*NO_FILES, "ABSOLUTE"])
def test_a_fetch_writes_nothing_outside_of_its_folder(tmp_path, name):
    """The hash in a manifest has no key: every writer of the storage can make one."""
    name = str(tmp_path / "written") if name == "ABSOLUTE" else name
    content = evil_manifest(name)
    folder = tmp_path / "storage" / f"iter_0000001.{hashlib.sha256(content).hexdigest()[:12]}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(content)
    (folder / "x").write_text("abc")
    (tmp_path / "storage" / "x").write_text("abc")
    (tmp_path / "storage" / "latest.json").write_text(json.dumps({"step": 1, "folder": folder.name}))
    before = outside(tmp_path)
    storage = open_storage(str(tmp_path / "storage"))
    assert find_stored(storage) is None
    assert list_stored(storage) == []
    with pytest.raises(FileNotFoundError, match="the storage has no checkpoint"):
        fetch_checkpoint(storage, tmp_path / "run" / "deep")
    assert outside(tmp_path) == before


@pytest.mark.parametrize("name", ["../../secret/id_rsa", "link", "ABSOLUTE"])
def test_an_upload_reads_nothing_outside_of_its_folder(tmp_path, name):
    secret = tmp_path / "secret" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text("abc")
    checkpoint = complete_checkpoint.save(tmp_path / "run", 1)
    (checkpoint / "link").symlink_to(secret)
    (checkpoint / "manifest.json").write_bytes(evil_manifest(str(secret) if name == "ABSOLUTE" else name))
    with pytest.raises(StorageError, match=r"which is not a file below its folder|a link that leads out"):
        upload_checkpoint(checkpoint, open_storage(str(tmp_path / "storage")))
    stored = [path.read_bytes() for path in (tmp_path / "storage").rglob("*") if path.is_file()]
    assert b"abc" not in stored
    (problems,) = verify_checkpoint(checkpoint).values()
    assert "manifest.json names" in problems[0]


def test_a_link_in_a_folder_storage_that_leads_out_is_not_followed(tmp_path):
    storage = open_storage(str(tmp_path / "storage"))
    done = upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 1), storage)
    file = tmp_path / "storage" / done.folder / "__0_0.distcp"
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(StorageError, match="a link that leads out of its folder"):
        fetch_checkpoint(storage, tmp_path / "copy")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": "6"}, "a step or a size that is none"),
        ({"step": 10**30}, "a step or a size that is none"),
        ({"step": True}, "a step or a size that is none"),
        ({"layout": {"tp": "x"}}, "a step or a size that is none"),
        ({"layout": 5}, "a section of another type"),
        ({"versions": []}, "a section of another type"),
        ({"ckpt_format": None}, "a section of another type"),
        ({"files": (FileEntry(name="a", size=-1, checksum="sha256:0"),)}, "a step or a size that is none"),
        ({"files": (FileEntry(name="a", size=1, checksum="sha256"),)}, "has no checksum of a"),
        ({"files": (FileEntry(name="a", size=1, checksum=5),)}, "has no checksum of a"),
        ({"files": (FileEntry(name="a", size=1, checksum="sha256:0"),) * 2}, "names a twice"),
        (
            {"files": (FileEntry(name="manifest.json", size=1, checksum="sha256:0"),)},
            "names manifest.json twice",
        ),
    ],
)
def test_a_manifest_with_other_types_is_none(change, problem):
    content = encode_manifest(replace(Manifest(step=1, files=()), **change))
    with pytest.raises(ManifestError, match=problem):
        decode_manifest(content, source="here")


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b" " * (LARGEST + 1)])
def test_a_manifest_of_absurd_depth_or_size_is_none(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", [*NO_FILES, *NO_NAMES, "link"])
def test_an_index_names_files_of_its_own_checkpoint(tmp_path, name):
    checkpoint = complete_checkpoint.fill(tmp_path / "iter_0000001", 1)
    (checkpoint / "link").symlink_to("/etc/hostname")
    index = pickle.loads((checkpoint / ".metadata").read_bytes())
    index.storage_data = {key: _StorageInfo(name, 0, 10) for key in index.storage_data}
    (checkpoint / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(IncompleteCheckpointError, match=r"\.metadata cannot be read .*names"):
        read_tensor_index(checkpoint)
    assert find_problems(checkpoint) == [".metadata cannot be read (FileNameError)"]


@pytest.mark.parametrize("position", [(-1, 4), (0, -4), ("0", 4), (0, 2.5), (2**70, 1), (None, None)])
def test_an_index_has_positions(tmp_path, position):
    checkpoint = complete_checkpoint.fill(tmp_path / "iter_0000001", 1)
    index = pickle.loads((checkpoint / ".metadata").read_bytes())
    index.storage_data = {key: _StorageInfo("__0_0.distcp", *position) for key in index.storage_data}
    (checkpoint / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(IncompleteCheckpointError, match="has an entry without a position"):
        read_tensor_index(checkpoint)
