"""In-process restarts with NVRx, if it is installed: several processes under injected faults, on the CPU."""

import copy
import os
import signal
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia_resiliency_ext")

sys.path.insert(0, str(Path(__file__).parent))

import restarted_training  # noqa: E402
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord  # noqa: E402
from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart  # noqa: E402
from nvidia_resiliency_ext.inprocess.store import PrefixStore as AttemptStore  # noqa: E402
from restarted_training import attempts, even, launch, losses  # noqa: E402
from torch.distributed import PrefixStore  # noqa: E402

from mb_resilience import InProcessRestartConfig, RestartLimitError  # noqa: E402
from mb_resilience.restarts.arguments import Rendezvous  # noqa: E402
from mb_resilience.restarts.nvrx import (  # noqa: E402
    RestartedRun,
    forget_incomplete_imports,
    interruption_in,
    run_with_restarts,
)
from mb_resilience.restarts.nvrx_store import NVRX, SharedStore  # noqa: E402
from mb_resilience.restarts.signals import HeldSignals  # noqa: E402
from mb_resilience.restarts.store import serve_store  # noqa: E402


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, float]:
    """Losses of a run of two ranks without a fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert launch(folder, world_size=2, faults={}) == [0, 0]
    return losses(folder)


@pytest.mark.slow
def test_ranks_that_raise_die_and_hang_are_replaced_and_losses_are_those_of_an_undisturbed_run(
    tmp_path, undisturbed
):
    faults = {0: (1, "raise", 2), 1: (0, "kill", 4), 2: (1, "stop", 6)}
    codes = launch(tmp_path, world_size=4, faults=faults, active_world_size=2, max_iterations=3)
    assert codes == [0, 0, 0, 0]
    assert losses(tmp_path) == undisturbed
    causes = [reasons[0] for reasons in attempts(tmp_path).values() if reasons]
    assert causes == [
        "rank 1 raised RuntimeError: a planted fault",
        "rank 0 was killed, or its process ended",
        "rank 1 made no progress for hard_timeout, and was killed",
    ]
    assert {file.name: file.read_text() for file in tmp_path.glob("rank*")} == {"rank2": "3", "rank3": "3"}


def test_initial_ranks_are_numbers():
    alone = Rendezvous(host="127.0.0.1", port=0, rank=0, world_size=1)
    server = serve_store(alone)
    store = SharedStore(replace(alone, port=server.port))
    store.set_initial_rank(0, 3)
    assert store.get_initial_ranks([0]) == [3]


@pytest.mark.parametrize("ranks", [16, 64, 256, 2048])
def test_a_request_names_a_bounded_number_of_keys(ranks):
    """One request of the server takes a time that grows with the square of the keys in it."""

    class Server:
        def __init__(self):
            self.requests = []

        def check(self, keys):
            self.requests.append(len(keys))
            return True

        def multi_get(self, keys):
            self.requests.append(len(keys))
            return [key.encode() for key in keys]

    store = SharedStore.__new__(SharedStore)
    store._store = server = Server()
    keys = [f"key{rank}" for rank in range(ranks)]
    assert store.multi_get(keys) == [key.encode() for key in keys]
    assert store.check(keys)
    assert sum(server.requests) == 3 * ranks
    assert (max(server.requests), len(server.requests)) == (min(ranks, 512), 3 * -(-ranks // 512))


@pytest.mark.matrix
@pytest.mark.slow
def test_the_last_permitted_attempt_ends_the_run_on_all_ranks(tmp_path):
    faults = dict.fromkeys(range(5), (1, "raise", 3))
    assert launch(tmp_path, world_size=2, faults=faults, max_iterations=1) == [3, 3]
    message = (tmp_path / "rank0").read_text()
    assert message.startswith(
        "RestartLimitError: inprocess_restart.max_iterations: after 1 restarts (rank 1 raised"
    )
    assert message == (tmp_path / "rank1").read_text()


@pytest.mark.matrix
@pytest.mark.slow
def test_ranks_that_cannot_train_without_a_dead_one_end_the_run(tmp_path):
    codes = launch(tmp_path, world_size=2, faults={0: (0, "kill", 3)}, usable=even)
    assert codes == [-signal.SIGKILL, 3]
    assert "1 remaining ranks cannot train this run (rank 0 was killed" in (tmp_path / "rank1").read_text()


@pytest.mark.matrix
@pytest.mark.slow
def test_a_final_error_ends_the_run_at_once(tmp_path):
    assert launch(tmp_path, world_size=2, faults={0: (1, "bad input", 3)}) == [3, 3]
    assert (tmp_path / "rank1").read_text() == "KeyError: 'a planted fault'"
    message = (tmp_path / "rank0").read_text()
    assert message == (
        "RestartLimitError: inprocess_restart: the run ends, because rank 1 raised KeyError: 'a planted fault'"
    )


@pytest.mark.matrix
@pytest.mark.slow
def test_a_rank_with_more_than_max_rank_faults_leaves_the_run(tmp_path, undisturbed):
    faults = {0: (1, "raise", 3)}
    # its partner fails in a collective, which counts, too: both are replaced
    codes = launch(tmp_path, world_size=4, faults=faults, active_world_size=2, max_rank_faults=0)
    assert (codes, losses(tmp_path)) == ([0, 0, 0, 0], undisturbed)
    assert "max_rank_faults: rank 1 leaves the run" in (tmp_path / "rank1").read_text()


def test_a_single_process_is_restarted_without_a_launcher(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    numbers = []

    def train(attempt):
        numbers.append((attempt.number, [*map(str, attempt.faults)]))
        if attempt.number == 0:
            raise ValueError("a planted fault")
        return attempt.world_size

    section = InProcessRestartConfig(enabled=True, **restarted_training.SHORT_TIMES)
    aborts = []
    assert run_with_restarts(train, section, abort=[lambda: aborts.append(len(numbers))]) == 1
    assert aborts == [1]  # once, after the attempt that failed
    assert numbers == [(0, []), (1, ["rank 0 raised ValueError: a planted fault"])]
    assert "RANK" not in os.environ
    numbers.clear()
    last = InProcessRestartConfig(enabled=True, max_iterations=0, **restarted_training.SHORT_TIMES)
    with pytest.raises(RestartLimitError, match="max_iterations=0"):
        run_with_restarts(train, last)


def make_run(server, *, rank, world_size):
    return RestartedRun(
        lambda _attempt: None,
        Rendezvous(host="127.0.0.1", port=server.port, rank=rank, world_size=world_size),
        section=InProcessRestartConfig(enabled=True),
        signals=HeldSignals([]),
        is_final=lambda _error: False,
    )


@pytest.mark.parametrize("raising", [5, 70])
def test_one_rank_reads_the_faults_for_all(raising, monkeypatch):
    server = serve_store(Rendezvous(host="127.0.0.1", port=0, rank=0, world_size=5))
    runs = [make_run(server, rank=rank, world_size=5) for rank in range(5)]
    records = AttemptStore(0, PrefixStore(NVRX, runs[0].store))
    for rank in range(raising):
        records.record_interrupted([InterruptionRecord(rank, Interruption.EXCEPTION)])
        runs[0].store.set(f"error/0/{rank}", f"ValueError: {rank}")
    read, read_one = [], RestartedRun._fault

    def count(run, store, number, rank, kind):
        read.append((run.meeting.rank, rank))
        return read_one(run, store, number, rank, kind)

    monkeypatch.setattr(RestartedRun, "_fault", count)
    found = [[*map(str, run.faults(0))] for run in [*reversed(runs), *runs]]
    assert found == [[f"rank {rank} raised ValueError: {rank}" for rank in range(min(raising, 64))]] * 10
    assert read == [(4, rank) for rank in range(raising)]


def test_the_faults_are_read_again_if_the_rank_that_reads_them_dies(monkeypatch):
    server = serve_store(Rendezvous(host="127.0.0.1", port=0, rank=0, world_size=2))
    run = make_run(server, rank=1, world_size=2)
    AttemptStore(0, PrefixStore(NVRX, run.store)).record_terminated_ranks([0])
    run.store.add("faults/0/readers", 1)
    monkeypatch.setattr("mb_resilience.restarts.nvrx.READER_SECONDS", 0.1)
    assert [*map(str, run.faults(0))] == ["rank 0 was killed, or its process ended"]


def test_a_rank_that_died_is_the_first_cause_although_its_record_came_too_late():
    """NVRx locks the records of an attempt once a rank has raised; the ranks that died are kept apart."""
    server = serve_store(Rendezvous(host="127.0.0.1", port=0, rank=0, world_size=2))
    run = make_run(server, rank=0, world_size=2)
    records = AttemptStore(0, PrefixStore(NVRX, run.store))
    records.record_interrupted([InterruptionRecord(0, Interruption.EXCEPTION)])
    run.store.set("error/0/0", "RuntimeError: Connection reset by peer")
    records.lock_interruption_records()
    records.record_interrupted([InterruptionRecord(1, Interruption.TERMINATED)])
    records.record_terminated_ranks([1])
    assert [*map(str, run.faults(0))] == [
        "rank 1 was killed, or its process ended",
        "rank 0 raised RuntimeError: Connection reset by peer",
    ]


def test_an_interruption_is_found_behind_the_error_that_replaced_it():
    interruption = RankShouldRestart()
    error = RuntimeError("raised while unwinding")
    error.__context__ = interruption
    assert interruption_in(error) is interruption
    assert interruption_in(RuntimeError()) is None


def test_modules_of_a_package_whose_import_was_interrupted_are_forgotten(monkeypatch):
    monkeypatch.setitem(sys.modules, "interrupted.part", types.ModuleType("interrupted.part"))
    known = copy.copy(sys.modules)
    forget_incomplete_imports()
    assert set(known) - set(sys.modules) == {"interrupted.part"}
