"""Laws of the store traffic: what all ranks send together grows with their number, and not faster.

`python tests/scale/laws.py 1024 4096` prints the same counts for more ranks.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from laws import Traffic, of_commit, of_copy, of_hang, of_load, of_save, of_steps, saved_by

RANKS = [16, 64, 256]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_and_a_batch_cost_one_read_of_each_rank_in_its_thread(ranks):
    found = of_steps(ranks)
    for name in ("agreed stop, a step", "agreed stop, a batch of an evaluation"):
        assert found[name].messages == ranks + 1  # one `get` of each follower; `set` and `check` of rank 0
        assert found[name].bytes < 60 * ranks
    assert found["agreed stop, in the main thread"] == Traffic(0, 0, 0)
    assert found["agreed stop, connections"].messages == ranks  # for signals, time and evaluations together


@pytest.mark.parametrize("ranks", RANKS)
def test_a_save_in_flight_is_read_at_few_of_its_steps(ranks):
    found = of_save(ranks, steps=100)
    rounds = 19  # 1 to 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63, 78 and 97, without the first one
    in_flight = found["save in flight, all of 100 steps"]
    # each follower: one `get` a round, and one `check` before the first; rank 0: its counter a step, one `set` a round
    assert in_flight.messages == (ranks - 1) * (rounds + 1) + 100 + rounds + 1
    assert in_flight.bytes < 100 * in_flight.messages
    assert found["save, reports of all ranks"].messages == ranks
    assert found["save, reports read by rank 0"].messages == 4
    assert found["save, one poll of all ranks that wait"].messages <= ranks + 1


@pytest.mark.parametrize("ranks", RANKS)
def test_a_save_opens_no_file_of_the_other_ranks_unless_their_writers_are_other_processes(ranks):
    found = of_commit(ranks)
    assert found["save at once, files before its report"].messages < 20
    # the result of each rank is read and removed
    assert found["save in the background, files before its report"].messages < 2 * ranks + 20
    deleted = found["save, files of an old checkpoint, afterwards"].messages
    assert ranks <= deleted < ranks + 20


@pytest.mark.parametrize("ranks", RANKS)
def test_each_file_is_verified_once_by_the_rank_that_wrote_it(ranks):
    found, manifest = of_load(ranks), saved_by(ranks)
    stored = sum(entry.size for entry in manifest.files)
    assert found["load, files verified"] == Traffic(len(manifest.files), 0, stored)
    assert found["load, files that another rank wrote"] == Traffic(0, 0, 0)
    assert found["load, the rank with the most bytes"].bytes < 1.2 * stored / ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_a_copy_to_a_storage_sends_the_same_bytes_from_each_rank(ranks):
    found = of_copy(ranks)
    # rank 0 sets a decision, which each other rank looks for and gets; all add 1 to a counter, which rank 0 reads
    assert found["copy, store of the ranks"].messages == 1 + 2 * (ranks - 1) + ranks + 4
    # the owner, and for each of its files: is it there, it is sent, it is read back
    assert found["copy, the rank with the most"].messages == 1 + 3
    assert found["copy, the rank with the most"].bytes < 2 * 1000 + 300
    at_end = found["copy, rank 0 at the end, without the manifest"]
    assert (at_end.messages < 10, at_end.bytes < 500) == (True, True)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_hang_report_is_linear_in_the_ranks(ranks):
    found, reports = of_hang(ranks)
    assert found["heartbeat of all ranks"].messages == ranks
    report = found["hang report, without the heartbeats"]
    assert report.messages < 10 * ranks
    assert report.keys < 14 * ranks
    assert report.bytes < 6000 * ranks
    assert len(reports) == 1


@pytest.mark.parametrize("ranks", RANKS)
def test_a_hang_report_without_the_reporting_rank_is_linear_in_the_ranks(ranks):
    found, reports = of_hang(ranks, silent=ranks - 1)
    assert found["hang report, without the heartbeats"].messages < 30 * ranks
    assert len(reports) == 1
    assert f"check rank {ranks - 1}, which sends no heartbeats" in reports[0]
