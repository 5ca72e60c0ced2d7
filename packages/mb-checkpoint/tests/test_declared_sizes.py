"""Sizes that a file declares are compared with its length before anything is allocated."""

import io
import pickle
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import PosixPath

import complete_checkpoint
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItemType
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from mb_checkpoint import diff_checkpoints
from mb_checkpoint.errors import (
    DamagedCheckpointError,
    IncompleteCheckpointError,
    TrainStateError,
    UnsafeCheckpointError,
)
from mb_checkpoint.formats.stored_arguments import read_common_state
from mb_checkpoint.formats.unpickling import load_object, weights_only
from mb_checkpoint.load.select import read_tensor_index
from mb_checkpoint.state.train_state import read_train_state

DEEP = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
"""Tuples in each other in so many levels that their hash overflows the stack of the process."""


def test_a_bytearray_is_not_made_from_a_number(tmp_path):
    checkpoint = complete_checkpoint.fill(tmp_path / "iter_0000001", 1)
    (checkpoint / ".metadata").write_bytes(b"cbuiltins\nbytearray\n(I6000000000\ntR.")
    with pytest.raises(UnsafeCheckpointError, match=r"names builtins\.bytearray"):
        read_tensor_index(checkpoint)


def change_of(name):
    """Return a pickle that sets the attribute `victim` of a global, or of the substitute of a class."""
    return b"\x80\x02c" + name + b"\nN}X\x06\x00\x00\x00victimX\x01\x00\x00\x00xs\x86b}."


CHANGED = {
    "a path": b"pathlib\nPosixPath",
    "a dataclass": b"torch.distributed.checkpoint.metadata\nMetadata",
    "a function": b"torch.serialization\n_get_layout",
    "an enumeration": b"torch.distributed.checkpoint.planner\nWriteItemType",
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_index_does_not_change_a_class_of_the_process(tmp_path, name):
    """The opcode BUILD sets attributes of whatever is on the stack, also of a class."""
    checkpoint = complete_checkpoint.fill(tmp_path / "iter_0000001", 1)
    (checkpoint / ".metadata").write_bytes(change_of(CHANGED[name]))
    with pytest.raises(IncompleteCheckpointError, match="would change a class"):
        read_tensor_index(checkpoint)
    changed = (PosixPath, Metadata, torch.serialization._get_layout, WriteItemType)
    assert not any(hasattr(each, "victim") for each in changed)


def archive(content, *, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        made.writestr("archive/data.pkl", content)
        made.writestr("archive/version", "3")
    return buffer.getvalue()


def test_arguments_do_not_change_a_class_of_the_process(tmp_path):
    for name in (
        b"argparse\nNamespace",
        b"collections\nOrderedDict",
        b"torch._utils\n_rebuild_tensor_v2",
        b"x\ny",
    ):
        (tmp_path / "common.pt").write_bytes(archive(change_of(name)))
        with pytest.raises((pickle.UnpicklingError, TypeError)):
            read_common_state(tmp_path)
    assert not hasattr(Namespace, "victim")


def test_shared_lists_are_converted_once(tmp_path):
    value = ["x"]
    for _ in range(60):
        value = [value] * 10
    (tmp_path / "common.pt").write_bytes(archive(pickle.dumps({"iteration": value})))
    assert set(read_common_state(tmp_path)) == {"iteration"}


MEMORY_MIB = 500
READ = """
import resource, sys
from pathlib import Path
import mb_checkpoint.state.train_state, mb_checkpoint.formats.stored_arguments
from mb_checkpoint import CheckpointError, list_checkpoints
from mb_checkpoint.inspect.inspection import check_trackers
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(list_checkpoints(Path(sys.argv[1])), check_trackers(Path(sys.argv[1])))
except CheckpointError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_a_compressed_archive_is_not_expanded(tmp_path):
    bomb = archive(bytes(1 << 30), compression=zipfile.ZIP_DEFLATED)
    checkpoint = complete_checkpoint.fill(tmp_path / "iter_0000001", 1)
    for file in (checkpoint / "train_state.pt", tmp_path / "latest_train_state.pt"):
        file.write_bytes(bomb)
    with pytest.raises(TrainStateError, match="cannot be read as a train state"):
        read_train_state(file)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.splitlines()[-1]) < MEMORY_MIB


def test_a_pickle_that_is_no_archive_is_no_train_state(tmp_path):
    (tmp_path / "train_state.pt").write_bytes(DEEP)
    with pytest.raises(TrainStateError, match="cannot be read as a train state"):
        read_train_state(tmp_path / "train_state.pt")


OBJECTS = {
    "depth": (archive(DEEP), "more than 100 levels"),
    "depth before torch 1.6": (
        b"".join(pickle.dumps(each, protocol=2) for each in (MAGIC_NUMBER, PROTOCOL_VERSION, {})) + DEEP,
        "more than 100 levels",
    ),
    "compression": (archive(b"N.", compression=zipfile.ZIP_DEFLATED), "compressed entries"),
    "bytearray": (archive(b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85R."), "makes a bytearray"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_declares_no_more_than_it_has(tmp_path, name):
    content, problem = OBJECTS[name]
    with pytest.raises(pickle.UnpicklingError, match=problem):
        load_object(io.BytesIO(content), path=tmp_path)


@pytest.mark.parametrize("name", OBJECTS)
def test_libraries_read_no_object_that_declares_more(tmp_path, name):
    content, problem = OBJECTS[name]
    dcp.save({"counters": "two"}, checkpoint_id=tmp_path, no_dist=True)
    (tmp_path / "object").write_bytes(content)
    index = pickle.loads((tmp_path / ".metadata").read_bytes())
    (piece,) = index.storage_data.values()
    vars(piece).update(relative_path="object", offset=0, length=len(content))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(DamagedCheckpointError, match=problem), weights_only(tmp_path):
        dcp.load({"counters": ""}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(pickle.UnpicklingError, match=problem), weights_only(tmp_path):
        torch.load(tmp_path / "object")
    assert torch.load.__module__ == "torch.serialization"


def test_files_of_torch_are_read_in_the_block(tmp_path):
    value = {"step": 3, "states": [torch.arange(3.0)], "tuple": (1, "x")}
    torch.save(value, tmp_path / "now.pt")
    torch.save(value, tmp_path / "before.pt", _use_new_zipfile_serialization=False)
    with weights_only(tmp_path):
        for name in ("now.pt", "before.pt"):
            assert str(torch.load(tmp_path / name)) == str(value)
            with (tmp_path / name).open("rb") as stream:
                assert str(load_object(stream, path=tmp_path)) == str(value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"size": torch.Size((10**10,))}, "bytes are stored"), ({"properties": None}, "is damaged")],
)
def test_a_tensor_is_not_allocated_by_the_size_in_the_index(tmp_path, change, problem):
    folders = [complete_checkpoint.fill(tmp_path / name / "iter_0000001", 1) for name in "ab"]
    index = pickle.loads((folders[0] / ".metadata").read_bytes())
    vars(index.state_dict_metadata["weight"]).update(change)
    for folder in folders:
        (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(DamagedCheckpointError, match=problem):
        diff_checkpoints(*folders, values=True)
