"""A file that several ranks need is read by one of them, which sends the others their pieces."""

import shutil
import time

import pytest
import rank_work
import shared_files_work
from fork_ranks import RanksFailedError
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint.load.shared_files import (
    MAX_COPIES,
    MAX_FILES,
    SMALL_BYTES,
    FilePart,
    assign_readers,
    parts_to_share,
)


def parts_of(*sizes):
    """Return the parts of a rank by the bytes of each file; 0: it does not need the file."""
    return {f"file{number}": FilePart(pieces=1, size=size) for number, size in enumerate(sizes) if size}


def sizes_of(*sizes):
    return {f"file{number}": size for number, size in enumerate(sizes)}


def readers(assigned):
    """Return (file, ranks that share it) -> reader."""
    return {
        (file.name, tuple(sorted([file.reader, *file.receivers]))): file.reader
        for files in assigned
        for file in files
    }


def test_a_file_of_one_rank_is_not_shared():
    assert assign_readers([parts_of(9, 0), parts_of(0, 9)], sizes_of(9, 9)) == [[], []]


def test_the_rank_that_needs_most_reads_and_the_readers_are_balanced():
    found = assign_readers([parts_of(6), parts_of(4)], sizes_of(10))
    assert readers(found) == {("file0", (0, 1)): 0}
    assert found[0][0].receivers == {1: 1}
    found = assign_readers([parts_of(*[8] * 4)] * 4, sizes_of(*[8] * 4))
    assert sorted(readers(found).values()) == [0, 1, 2, 3]


def test_a_file_of_which_all_ranks_need_less_than_half_is_not_shared():
    assert assign_readers([parts_of(3), parts_of(2)], sizes_of(10)) == [[], []]
    assert readers(assign_readers([parts_of(3), parts_of(3)], sizes_of(10)))


def test_many_replicas_share_a_file_in_groups_of_neighbours():
    found = readers(assign_readers([parts_of(5)] * 64, sizes_of(5)))
    assert [ranks for _, ranks in sorted(found)] == [
        tuple(range(first, first + MAX_COPIES)) for first in range(0, 64, MAX_COPIES)
    ]


def test_a_chain_of_neighbours_has_two_rounds():
    """Else each rank would wait for the one before it, and the load would take as long as all files."""
    ranks = 100
    found = assign_readers(
        [parts_of(*[5 if file in (rank - 1, rank) else 0 for file in range(ranks)]) for rank in range(ranks)],
        sizes_of(*[10] * ranks),
    )
    orders = {tuple(int(file.name[4:]) % 2 for file in files) for files in found[1:-1]}
    assert orders in ({(0, 1)}, {(1, 0)})


def test_a_rank_offers_its_largest_parts_and_reads_small_ones_itself():
    sizes = sizes_of(*[1000] * (MAX_FILES + 2), 2 * SMALL_BYTES * 64)
    parts = parts_of(*[100 + number for number in range(MAX_FILES + 1)], 1, SMALL_BYTES)
    assert parts_to_share(parts, sizes) == {
        name: part for name, part in parts.items() if name not in ("file0", "file1", f"file{MAX_FILES + 1}")
    }


@given(st.lists(st.lists(st.integers(0, 12), min_size=5, max_size=5), min_size=1, max_size=9))
def test_ranks_that_follow_their_orders_never_wait_for_each_other(needs):
    sizes = sizes_of(*[12] * 5)
    parts = [parts_of(*each) for each in needs]
    left = [list(files) for files in assign_readers(parts, sizes)]
    while any(left):
        ready = [
            files[0]
            for files in left
            if files and all(left[rank][:1] == files[:1] for rank in (files[0].reader, *files[0].receivers))
        ]
        assert ready
        left = [files[1:] if files and files[0] in ready else files for files in left]
    by_file = {name: [rank for rank, each in enumerate(parts) if name in each] for name in sizes}
    found = readers(assign_readers(parts, sizes))
    for name, ranks in by_file.items():
        total = sum(parts[rank][name].size for rank in ranks)
        shared = sum(name == other for other, _ in found)
        assert shared <= 1 + total // (MAX_COPIES * 12 - 12)
        if len(ranks) > 1 and 12 < 2 * total <= 2 * MAX_COPIES * 12:
            assert shared == 1


@pytest.fixture(scope="module")
def saved(fork_server, tmp_path_factory):
    """Number of ranks that saved -> folder."""
    folders = {}
    for world in (1, 2, 4):
        folders[world] = tmp_path_factory.mktemp("saved") / "run"
        fork_server.ranks(world).run(shared_files_work.save, str(folders[world]))
    return folders


@pytest.mark.parametrize(("saving", "loading"), [(2, 2), (4, 2), (2, 4), (1, 4)])
def test_any_number_of_ranks_reads_each_byte_once(fork_server, saved, saving, loading):
    stored = sum(file.stat().st_size for file in (saved[saving] / "iter_0000001").iterdir())
    found = fork_server.ranks(loading).run(shared_files_work.load, str(saved[saving]))
    assert all(right for _, right in found)
    assert stored <= sum(count for count, _ in found) < 1.05 * stored


@pytest.mark.parametrize("position", [0, 100, -1])
def test_damage_of_a_shared_file_is_found_on_all_ranks(four_ranks, saved, tmp_path, position):
    """The first byte makes the piece unreadable, the others only change what is read."""
    shutil.copytree(saved[2], tmp_path / "run")
    shutil.copytree(saved[2] / "iter_0000001", tmp_path / "older/iter_0000001")
    newest = tmp_path / "run/iter_0000001"
    file = newest / "__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[position] ^= 0x55
    file.write_bytes(content)
    found = four_ranks.run(rank_work.error_of, shared_files_work.load, str(tmp_path / "run"))
    assert {kind for kind, *_ in found} == {"NoIntactCheckpointError"}
    assert all("__1_0.distcp differs from the manifest (checksum)" in message for _, message, _ in found)


def copies(saved, tmp_path, *, damaged):
    """Return a copy of the checkpoint for each of 4 ranks; the data file in one of them ends early."""
    folders = [tmp_path / str(rank) for rank in range(4)]
    for folder in folders:
        shutil.copytree(saved[1] / "iter_0000001", folder)
    file = folders[damaged] / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:100_000])
    return [str(folder) for folder in folders]


def test_a_rank_that_cannot_read_ends_the_load_of_the_ranks_that_wait_for_it(four_ranks, saved, tmp_path):
    folders = copies(saved, tmp_path, damaged=0)
    found = four_ranks.run(rank_work.error_of, shared_files_work.read_rows, folders)
    for kind, message, _ in found:
        assert kind == "CheckpointReadError"
        assert "rank 0: OSError" in message
        assert "ends at byte" in message
        assert (
            "rank 1: CheckpointReadError: rank 0, which reads __0_0.distcp for this rank, failed" in message
        )
        assert "nothing is lost" in message


def test_a_receiver_reads_nothing_from_the_file(four_ranks, saved, tmp_path):
    folders = copies(saved, tmp_path, damaged=3)
    assert four_ranks.run(shared_files_work.read_rows, folders) == [True] * 4


@pytest.mark.parametrize("failing", [(0,), (2,), (1, 3), (0, 1, 2, 3)])
def test_a_rank_that_cannot_use_its_pieces_ends_the_load_of_all(four_ranks, saved, failing):
    folders = [str(saved[1] / "iter_0000001")] * 4
    found = four_ranks.run(rank_work.error_of, shared_files_work.read_rows, folders, failing)
    for kind, message, _ in found:
        assert kind == "CheckpointReadError"
        assert all((f"rank {rank}: RuntimeError" in message) == (rank in failing[:3]) for rank in range(4))


def test_a_rank_that_dies_while_it_reads_ends_the_ranks_that_wait_for_it(two_ranks, saved):
    folders = [str(saved[1] / "iter_0000001")] * 2
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match="rank 1: Traceback"):  # the death itself may be noticed later
        two_ranks.run(shared_files_work.read_rows, folders, (), 0)
    assert time.monotonic() - start < 60
