"""Files of a checkpoint are read without executing their contents."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StoragePrefix
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

pytest.importorskip("megatron.core", reason="needs the mcore extra")

from mb_checkpoint import UnsafeCheckpointError, list_checkpoints
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import DamagedCheckpointError, DataloaderStateError
from mb_checkpoint.formats.trust import is_trusted, trusted
from mb_checkpoint.formats.unpickling import load_object, read_metadata, shared_index, weights_only
from mb_checkpoint.load.load import trusted_folders
from mb_checkpoint.load.select import find_problems, read_tensor_index
from mb_checkpoint.megatron.shards import read_entries, read_index
from mb_checkpoint.state.dataloader import encode_position, position_file_name, read_dataloader_state


class Payload:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "executed"


@pytest.fixture
def checkpoint(tmp_path):
    """torch checkpoint with a tensor and an object."""
    folder = tmp_path / "checkpoints" / "iter_0000002"
    dcp.save({"weight": torch.arange(4.0), "counters": "two"}, checkpoint_id=folder, no_dist=True)
    return folder


def put_object(checkpoint, value):
    """Replace the object of a checkpoint."""
    dcp.save({"weight": torch.arange(4.0), "counters": value}, checkpoint_id=checkpoint, no_dist=True)


def test_an_index_of_torch_is_read(checkpoint):
    assert set(read_metadata(checkpoint).state_dict_metadata) == {"weight", "counters"}
    assert read_index(checkpoint).shapes == {"weight": (4,)}
    assert read_entries(checkpoint, {"counters": None}) == {"counters": "two"}


def test_an_index_with_the_plans_of_all_ranks_is_read(checkpoint):
    path = checkpoint / ".metadata"
    index = pickle.loads(path.read_bytes())
    item = WriteItem(
        MetadataIndex("weight"),
        WriteItemType.SHARD,
        bytes_io_data=BytesIOWriteData(4),
        tensor_data=TensorWriteData(
            ChunkStorageMetadata(torch.Size([0]), torch.Size([4])), TensorProperties(), torch.Size([4])
        ),
    )
    index.all_local_plans = [SavePlan([item], storage_data=_StoragePrefix("__0_"))]
    path.write_bytes(pickle.dumps(index))
    assert read_metadata(checkpoint).all_local_plans == index.all_local_plans


READERS = {
    "read_metadata": read_metadata,
    "read_tensor_index": read_tensor_index,
    "read_index": read_index,
    "read_entries": lambda folder: read_entries(folder, {"counters": None}),
    "weights_only": lambda folder: weights_only(folder).__enter__(),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_index_that_names_code_is_rejected(checkpoint, marker, reader):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(UnsafeCheckpointError, match=r"names posix\.mkdir, which reading it would execute"):
        READERS[reader](checkpoint)
    assert not marker.exists()


def test_a_listing_reports_that_the_index_names_code(checkpoint, marker):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Payload(marker)))
    (listed,) = list_checkpoints(checkpoint.parent)
    assert listed.problems
    assert "names posix.mkdir" in "; ".join(find_problems(checkpoint, wanted=(".metadata",)))
    assert not marker.exists()


def test_an_index_that_is_none_is_damaged(checkpoint):
    (checkpoint / ".metadata").write_bytes(pickle.dumps({"not": "an index"}))
    with pytest.raises(pickle.UnpicklingError, match="holds a dict instead of an index"):
        read_metadata(checkpoint)


def test_an_object_that_names_code_is_rejected_by_this_reader_and_by_torchs(checkpoint, marker):
    put_object(checkpoint, Payload(marker))
    with pytest.raises(UnsafeCheckpointError, match=r"posix\.mkdir"):
        read_entries(checkpoint, {"counters": None})
    with pytest.raises(UnsafeCheckpointError, match=r"posix\.mkdir"), weights_only(checkpoint):
        dcp.load({"counters": ""}, checkpoint_id=checkpoint, no_dist=True)
    assert not marker.exists()


def test_other_errors_of_the_block_are_not_converted(checkpoint):
    with pytest.raises(LookupError, match="as it was"), weights_only(checkpoint):
        raise LookupError("as it was")
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_the_environment_variable_of_the_user_is_restored(checkpoint, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    with weights_only(checkpoint):
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "0"


def test_an_index_that_changes_is_checked_again(checkpoint, marker):
    with weights_only(checkpoint):
        pass
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(UnsafeCheckpointError), weights_only(checkpoint):
        pass


def test_an_index_that_was_read_under_trust_is_checked_without_it(checkpoint, marker):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Payload(marker)))
    with trusted(checkpoint), pytest.raises(pickle.UnpicklingError, match="instead of an index"):
        read_metadata(checkpoint)
    with pytest.raises(UnsafeCheckpointError), weights_only(checkpoint):
        pass


def test_everything_below_a_trusted_folder_is_unpickled(checkpoint, marker):
    put_object(checkpoint, Payload(marker))
    with trusted(checkpoint.parent):
        read_entries(checkpoint, {"counters": None})
        assert marker.is_dir()
        with weights_only(checkpoint):
            assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    assert not is_trusted(checkpoint)


def test_damage_in_a_trusted_folder_is_an_exception(checkpoint):
    for file in checkpoint.glob("*.distcp"):
        file.write_bytes(b"")
    with (  # torch's CheckpointException is none
        pytest.raises(DamagedCheckpointError, match=r"iter_0000002: cannot be read"),
        trusted(checkpoint),
        weights_only(checkpoint),
    ):
        dcp.load({"weight": torch.zeros(4)}, checkpoint_id=checkpoint, no_dist=True)


def test_trust_in_one_folder_is_none_in_another(checkpoint, tmp_path):
    with trusted(tmp_path / "other"):
        assert not is_trusted(checkpoint)
        with trusted(checkpoint):
            assert is_trusted(checkpoint / "__0_0.distcp")
            assert is_trusted(tmp_path / "other" / "x")


def test_the_section_trusts_all_folders_or_none():
    assert trusted_folders(CheckpointConfig()) == ()
    assert trusted_folders(CheckpointConfig(trust=True)) == (Path("/"),)


def test_a_damaged_object_is_no_unsafe_one(tmp_path):
    with pytest.raises(pickle.UnpicklingError) as caught:
        load_object(io.BytesIO(b"\x80\x02garbage."), path=tmp_path)
    assert not isinstance(caught.value, UnsafeCheckpointError)


class Loader:
    def __init__(self, state):
        self.state = state

    def save_state(self):
        return self.state

    def restore_state(self, state):
        self.state = state


def test_a_position_that_names_code_is_rejected(checkpoint, marker):
    torch.save({"dataloader_state_dict": Payload(marker)}, checkpoint / position_file_name(0))
    with pytest.raises(UnsafeCheckpointError, match=r"posix\.mkdir"):
        read_dataloader_state(checkpoint, dp_rank=0)
    assert not marker.exists()
    with trusted(checkpoint):
        read_dataloader_state(checkpoint, dp_rank=0)
    assert marker.is_dir()


def test_a_position_that_could_not_be_read_back_is_not_stored(checkpoint, marker):
    with pytest.raises(DataloaderStateError, match=r"save_state of Loader returns objects of .*mkdir"):
        encode_position(Loader(Payload(marker)))
    content = encode_position(Loader({"read": 3, "order": torch.arange(2)}))
    (checkpoint / position_file_name(0)).write_bytes(content)
    assert read_dataloader_state(checkpoint, dp_rank=0)["read"] == 3
    assert encode_position(Loader(Payload(marker)), trust=True)


def test_an_index_that_one_rank_has_read_replaces_the_file(checkpoint, marker):
    content = (checkpoint / ".metadata").read_bytes()
    (checkpoint / ".metadata").unlink()
    with shared_index(checkpoint, content), weights_only(checkpoint):
        assert read_metadata(checkpoint) is FileSystemReader(checkpoint).read_metadata()
        assert read_entries(checkpoint, {"counters": None}) == {"counters": "two"}
    with pytest.raises(FileNotFoundError):
        read_metadata(checkpoint)
    with (
        pytest.raises(UnsafeCheckpointError),
        shared_index(checkpoint, pickle.dumps(Payload(marker))),
    ):
        pass
    assert not marker.exists()
