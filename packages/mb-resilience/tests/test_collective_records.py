"""Which ranks miss which collective, from records in memory, in the store and in files."""

import pickle
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_resilience import GroupCollectives, missing_collectives, parse_record, read_dump_files
from mb_resilience.hangs.collective_records import as_text, from_text
from mb_resilience.hangs.reporter import stack_file_name


def called(number, *, pending=False, operation="all_reduce", group="dp (3)", ranks=(0, 1, 2)):
    return GroupCollectives(
        group=group, ranks=ranks, number=number, operation=operation, size="4", pending=pending
    )


def entry(number, *, retired, name="nccl:all_gather", p2p=False):
    return {
        "process_group": ("3", "dp"),
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[2, 4]],
        "state": "scheduled",
        "retired": retired,
        "is_p2p": p2p,
    }


RECORD = {
    "pg_config": {"3": {"ranks": "[0, 2]"}},
    "entries": [entry(1, retired=True), entry(2, retired=False), entry(9, retired=False, p2p=True)],
}
NEWEST = GroupCollectives(
    group="dp (3)", ranks=(0, 2), number=2, operation="all_gather", size="2x4", pending=True
)


def test_waiting_ranks_and_those_that_have_not_called_are_named():
    records = {0: [called(7, pending=True)], 1: [called(6, operation="barrier")]}
    assert missing_collectives(records, ranks=range(3)) == [
        "rank 0 waits in all_reduce of 4, number 7 of dp (3); not called by rank 1 (last: barrier, number 6), "
        "rank 2 (no record)"
    ]
    records = {0: [called(1, pending=True)], 1: [called(1, pending=True)], 2: []}
    assert missing_collectives(records, ranks=range(3)) == [
        "ranks 0-1 wait in all_reduce of 4, number 1 of dp (3); not called by rank 2 (none yet)"
    ]


def test_a_collective_that_all_have_called_or_completed_is_not_reported():
    assert missing_collectives({rank: [called(7, pending=True)] for rank in range(3)}, ranks=range(3)) == []
    assert missing_collectives({0: [called(7)], 1: [called(6)]}, ranks=range(3)) == []


def test_the_newest_collective_of_a_group_is_read():
    assert parse_record(RECORD) == (NEWEST,)
    assert parse_record(RECORD, group_ranks={"3": (0, 1)})[0].ranks == (0, 1)
    assert parse_record({}) == ()
    assert from_text(as_text([NEWEST])) == (NEWEST,)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), max_size=3),
    st.lists(st.integers(0, 99), unique=True, max_size=8),
)
def test_ranks_of_regular_and_other_groups_survive_the_store(grid, others):
    regular = [0]
    for number, distance in grid:
        regular = [rank + index * distance for index in range(number) for rank in regular]
    for ranks in (regular, others, [*regular, *others]):
        record = replace(NEWEST, ranks=tuple(ranks))
        assert from_text(as_text([record])) == (record,)


def test_a_regular_group_of_any_size_takes_the_same_space():
    small, large = (
        replace(NEWEST, ranks=tuple(64 * node + 8 * rank for node in range(n) for rank in range(4)))
        for n in (10, 99)
    )
    assert len(as_text([small])) == len(as_text([large]))


def test_ranks_with_the_same_last_collective_are_named_together():
    waiting = replace(NEWEST, ranks=tuple(range(6)), pending=True)
    behind = replace(waiting, number=waiting.number - 1)
    records = {0: [waiting], 1: [behind], 2: [behind], 3: [behind], 5: [behind]}
    (line,) = missing_collectives(records, ranks=range(6))
    assert line.endswith(
        f"not called by ranks 1-3,5 (last: {behind.operation}, number {behind.number}), rank 4 (no record)"
    )


def test_files_of_the_flight_recorder_are_read_as_plain_data(tmp_path):
    prefix = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "_dump_")}
    (tmp_path / "_dump_1").write_bytes(pickle.dumps(RECORD))
    assert read_dump_files(range(2), environment=prefix) == {1: (NEWEST,)}
    assert read_dump_files(range(2), environment={}) == {}
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(Path("anything")))
    with pytest.raises(ValueError, match=r"_dump_0: is not a record of the flight recorder \(pathlib"):
        read_dump_files(range(2), environment=prefix)
    (tmp_path / "_dump_0").write_bytes(
        b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    )  # its hash overflows the stack
    with pytest.raises(
        ValueError, match=r"flight recorder \(has objects in each other in more than 100 levels"
    ):
        read_dump_files(range(2), environment=prefix)


@pytest.mark.parametrize(
    "damaged",
    [pickle.dumps(RECORD).replace(b"[0", b"[\xff"), pickle.dumps({"entries": [{"process_group": ()}]})],
)
def test_a_damaged_file_of_the_flight_recorder_is_named(tmp_path, damaged):
    (tmp_path / "_dump_0").write_bytes(damaged)
    with pytest.raises(
        ValueError, match=r"_dump_0: is not a record of the flight recorder \(.*Remove the file"
    ):
        read_dump_files([0], environment={"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "_dump_")})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_a_rank_on_another_node_is_named_with_the_collective_that_it_misses(tmp_path):
    pytest.importorskip("torch")
    sys.path.insert(0, str(Path(__file__).parent))
    from hanging_node import SECONDS

    script, port = str(Path(__file__).parent / "hanging_node.py"), free_port()
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}",
             "--master-addr=127.0.0.1", f"--master-port={port}", script, str(tmp_path)],
            start_new_session=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    report, deadline = tmp_path / "hang_report.txt", time.monotonic() + 240
    try:
        while not (report.is_file() and "full stacks" in report.read_text()):
            assert all(agent.poll() is None for agent in agents)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        reported = time.time()
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()
    text = report.read_text()
    assert "check rank 1, which is not in torch.distributed, where the others wait" in text
    assert (
        "  collectives: rank 0 waits in all_gather of 2, number 4 of TENSOR_MODEL_PARALLEL_GROUP (1); "
        "not called by rank 1 (last: all_reduce, number 3)\n"
    ) in text
    stacks = (tmp_path / stack_file_name()).read_text().split("rank 1, process ")[1]
    assert "in sleep" in stacks or "main" in stacks
    assert reported - float((tmp_path / "hangs").read_text()) < 2 * SECONDS
