"""Positions of data loaders: files per rank, locations, and missing positions."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_work
from rank_work import error_of

from mb_checkpoint.errors import DataloaderStateError
from mb_checkpoint.state.dataloader import (
    align_chunk_positions,
    encode_position,
    position_file_name,
    positioned,
    read_dataloader_state,
    warn_without_position,
)
from mb_checkpoint.state.position_copies import PositionCopies, position_callbacks
from mb_schema.save_result import SaveResult


class Stream:
    """Data loader with a position."""

    def __init__(self, position=None):
        self.position = position

    def save_state(self):
        return {"position": self.position}

    def restore_state(self, state):
        self.position = state["position"]


def put(folder, *positions):
    """Write the positions of ranks 0, 1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, position in enumerate(positions):
        (folder / position_file_name(rank)).write_bytes(encode_position(Stream(position)))
    return folder


def test_the_iterable_of_an_iterator_or_of_the_first_of_several_keeps_the_position():
    stream = Stream()
    iterator = SimpleNamespace(iterable=stream)
    assert [positioned(each) for each in (iterator, [iterator, iterator])] == [stream, stream]


@pytest.mark.parametrize("iterator", [None, [], iter([1]), SimpleNamespace(iterable=[1])])
def test_others_keep_none(iterator):
    assert positioned(iterator) is None


def test_the_checkpoint_itself_is_looked_into_first_then_where_other_trainers_put_it(tmp_path):
    checkpoint = tmp_path / "iter_0000010"
    checkpoint.mkdir()
    assert read_dataloader_state(checkpoint, dp_rank=0) is None
    put(tmp_path / "energon" / "iter_0000010", 5, 6)
    assert read_dataloader_state(checkpoint, dp_rank=1) == {"position": 6}
    put(checkpoint, 7, 8)
    assert read_dataloader_state(checkpoint, dp_rank=1) == {"position": 8}


def test_a_folder_that_is_named_is_the_only_one(tmp_path):
    checkpoint = put(tmp_path / "run" / "iter_0000010", 1)
    elsewhere = tmp_path / "elsewhere"
    assert read_dataloader_state(checkpoint, dp_rank=0, folder=elsewhere) is None
    put(elsewhere / "iter_0000010", 2)
    assert read_dataloader_state(checkpoint, dp_rank=0, folder=elsewhere) == {"position": 2}


def test_a_checkpoint_without_a_step_has_its_positions_in_the_folder_itself(tmp_path):
    put(tmp_path / "elsewhere", 3)
    assert read_dataloader_state(Path("release"), dp_rank=0, folder=tmp_path / "elsewhere") == {"position": 3}


def test_another_data_parallel_size_is_rejected(tmp_path):
    checkpoint = put(tmp_path / "iter_0000010", 1, 2)
    with pytest.raises(DataloaderStateError, match="positions of 2 data-parallel ranks, and none of rank 2"):
        read_dataloader_state(checkpoint, dp_rank=2)


def test_a_position_that_no_rank_would_take_over_is_rejected(tmp_path):
    checkpoint = put(tmp_path / "iter_0000010", 1, 2, 3)
    with pytest.raises(
        DataloaderStateError, match="of 3 data-parallel ranks, and this run has 2: the position of rank 2"
    ):
        read_dataloader_state(checkpoint, dp_rank=0, dp_size=2)
    assert read_dataloader_state(checkpoint, dp_rank=2, dp_size=3) == {"position": 3}


def test_a_smaller_run_does_not_lose_a_position_in_silence(two_ranks, tmp_path):
    for kind, message, _ in two_ranks.run(error_of, tiny_work.stream_of_three, tmp_path):
        assert kind == "DataloaderStateError", message
        assert "this run has 2: the position of rank 2 would be lost" in message


def test_further_chunks_continue_from_the_position_of_the_first():
    chunks = [SimpleNamespace(iterable=Stream(position)) for position in (5, 0, 0)]
    align_chunk_positions(chunks)
    assert [chunk.iterable.position for chunk in chunks] == [5, 5, 5]
    for without in (None, chunks[0], [iter([]), iter([])]):
        align_chunk_positions(without)


def checked(iterator, *, folder=None, saves=True):
    """Return the warnings about an iterator."""
    lines = []
    folders = {"dataset.dataloader_save": None, "dataset.dataloader_load": folder}
    warn_without_position(iterator, dataset="Mine", folders=folders, saves=saves, log=lines.append)
    return lines


def test_a_loader_without_a_position_is_reported_if_checkpoints_are_saved():
    assert checked(SimpleNamespace(iterable=Stream()), folder="positions") == []
    assert checked(None, folder="positions") == []
    assert checked(iter([]), saves=False) == []
    (line,) = checked(iter([]))
    assert line.startswith(
        "warning: dataset.dataloader_type=external: the iterator of Mine has no `iterable` with"
    )


def test_a_loader_without_a_position_is_rejected_if_a_folder_for_positions_is_configured():
    with pytest.raises(
        DataloaderStateError, match=r"dataset\.dataloader_load=positions: .* so there is no position"
    ):
        checked(iter([]), folder="positions")


def complete(step, path, *, non_persistent=False):
    """Return the context of the event of a complete checkpoint."""
    return SimpleNamespace(save=SaveResult(step=step, non_persistent=non_persistent, written=True, path=path))


def test_positions_of_persistent_checkpoints_are_copied(tmp_path):
    checkpoint = put(tmp_path / "iter_0000003", 10, 20)
    (checkpoint / "other.pt").touch()
    copies = PositionCopies(tmp_path / "positions", log=print)
    copies.on_checkpoint_save(complete(3, checkpoint))
    copies.on_checkpoint_save(complete(4, checkpoint, non_persistent=True))
    copies.on_checkpoint_save(complete(5, None))
    copies.on_checkpoint_save(SimpleNamespace(save=None))
    stored = sorted(path.relative_to(tmp_path) for path in (tmp_path / "positions").rglob("*.pt"))
    assert [str(path) for path in stored] == [
        "positions/iter_0000003/train_dataloader_dprank000.pt",
        "positions/iter_0000003/train_dataloader_dprank001.pt",
    ]


def test_positions_are_copied_on_rank_0_if_a_folder_is_set(tmp_path):
    checkpoint = put(tmp_path / "iter_0000003", 10, 20)
    for folder, rank in ((None, 0), (tmp_path / "positions", 1), (tmp_path / "kept", 0)):
        for copies in position_callbacks(folder, rank=rank, log=print):
            copies.on_checkpoint_save(complete(3, checkpoint))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000003", "kept"]


def test_a_copy_that_fails_is_a_warning(tmp_path):
    (tmp_path / "file").touch()
    lines = []
    PositionCopies(tmp_path / "file", log=lines.append).on_checkpoint_save(complete(3, tmp_path))
    assert lines[0].startswith("warning: dataset.dataloader_save: no position of step 3: ")
