"""Sizes that a file declares are compared with its length before anything is allocated."""

import io
import pickle
import pickletools
import struct
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import PosixPath

import complete_checkpoint
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItemType

from mb_checkpoint import diff_checkpoints
from mb_checkpoint.errors import (
    DamagedCheckpointError,
    IncompleteCheckpointError,
    TrainStateError,
    UnsafeCheckpointError,
)
from mb_checkpoint.formats.declared_sizes import check_archive, check_pickle, pickle_in_archive
from mb_checkpoint.formats.stored_arguments import read_common_state
from mb_checkpoint.load.select import read_tensor_index
from mb_checkpoint.state.train_state import encode_train_state, read_train_state

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_every_pickle_of_the_standard_library_passes(value, protocol):
    check_pickle(pickle.dumps(value, protocol=protocol))


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL), st.integers(0), st.integers(0, 255))
def test_a_changed_byte_is_no_other_error_than_in_pickle(value, protocol, position, byte):
    """A pickle that pickletools and pickle read passes, unless it numbers more objects than it has bytes."""
    content = bytearray(pickle.dumps(value, protocol=protocol))
    content[position % len(content)] = byte
    content = bytes(content)
    try:
        check_pickle(content)
    except pickle.UnpicklingError as error:
        if "numbered objects" not in str(error):
            with pytest.raises(Exception):  # noqa: B017, PT012
                pickletools.dis(content, io.StringIO())  # takes a mark for an object, which pickle does not
                pickle.loads(content)


LEVELS = {
    "tuples among lists": b"\x85]0",
    "tuples in the memo": b"\x85q\x00h\x000",
    "tuples with a mark": b"(N1\x85",
    "frozen sets": b"\x85q\x000(h\x00\x91",
    "calls": b"\x85q\x000cbuiltins\nslice\nh\x00R",
}
"""Opcodes that put the object on the stack into another one, which no run of equal opcodes shows."""
BOMBS = {
    "numbered object": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "numbered object in text": b"Np2147483647\n.",
    "length": b"\x80\x04\x8d" + struct.pack("<Q", 6 * 10**9) + b"x.",
    "long number": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "negative length": b"\x80\x04\x8b" + struct.pack("<i", -5) + b"x.",
    "depth": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
    **{f"depth of {name}": b"\x80\x02})" + levels * 200_000 + b"Ns." for name, levels in LEVELS.items()},
    "missing object": b"\x80\x02h\x00.",
    "missing item": b"\x80\x02\x85.",
    "cut": b"\x80\x04",
    "unknown": b"\x80\x04\xff.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_does_not_declare_more_than_it_has(name):
    with pytest.raises(pickle.UnpicklingError):
        check_pickle(BOMBS[name])


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
from mb_checkpoint.inspect.trackers import check_trackers
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(list_checkpoints(Path(sys.argv[1])), check_trackers(Path(sys.argv[1])))
except CheckpointError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


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
    (tmp_path / "train_state.pt").write_bytes(BOMBS["depth"])
    with pytest.raises(TrainStateError, match="cannot be read as a train state"):
        read_train_state(tmp_path / "train_state.pt")


def test_an_archive_has_entries_that_are_stored_and_fit(tmp_path):
    content = encode_train_state({"step": 1})
    check_archive(io.BytesIO(content))
    check_archive(io.BytesIO(b"no archive"))
    with pytest.raises(pickle.UnpicklingError, match="compressed entries"):
        check_archive(io.BytesIO(archive(b"x" * 100, compression=zipfile.ZIP_DEFLATED)))
    with pytest.raises(pickle.UnpicklingError, match="no readable directory"):
        check_archive(io.BytesIO(content[:-30]))
    entry = archive(b"x" * 1000)
    directory = entry.index(b"PK\x01\x02")
    larger = bytearray(entry)
    larger[directory + 20 : directory + 28] = struct.pack("<II", 10**9, 10**9)
    with pytest.raises(pickle.UnpicklingError, match="larger than the file"):
        check_archive(io.BytesIO(bytes(larger)))
    with pytest.raises(pickle.UnpicklingError, match=r"no archive of torch\.save"):
        pickle_in_archive(io.BytesIO(b"no archive"))


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
