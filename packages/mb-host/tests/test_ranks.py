"""Launcher of ranks: results, failures, deaths, hangs, and remaining processes."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import host_launches
import pytest

from mb_host import RankFailedError, RankPool, RankTimeoutError, function_in, run_ranks
from mb_host.ranks.errors import rank_failed_error
from mb_host.ranks.messages import RankOutcome

HOST_ONLY = {"CUDA_VISIBLE_DEVICES": ""}
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")


def test_results_come_back_by_rank(two_ranks):
    assert two_ranks.run(host_launches.summarize) == [
        host_launches.RankSummary(0, 1),
        host_launches.RankSummary(1, 1),
    ]


def test_processes_remain_between_runs(two_ranks):
    assert two_ranks.run(host_launches.process_id) == two_ranks.run(host_launches.process_id)


def test_cuda_calls_run_on_the_cpu_on_every_rank(two_ranks):
    assert two_ranks.run(host_launches.cuda_device) == [(0, "cpu")] * 2


def test_environment_of_a_rank(one_rank):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    assert one_rank.run(host_launches.environment, *names) == [("0", "0", "1", "127.0.0.1", "1", "")]


def test_if_every_rank_raises_the_processes_remain(two_ranks):
    before = two_ranks.run(host_launches.process_id)
    with pytest.raises(RankFailedError, match="ValueError: boom"):
        two_ranks.run(host_launches.raise_everywhere)
    assert two_ranks.run(host_launches.process_id) == before


def test_sys_exit_is_a_failure(two_ranks):
    with pytest.raises(RankFailedError, match="raised SystemExit: 4"):
        two_ranks.run(host_launches.system_exit)


def test_a_result_that_cannot_be_pickled_is_a_failure(two_ranks):
    with pytest.raises(RankFailedError, match="pickle"):
        two_ranks.run(host_launches.unpicklable)


def ends(process_id):
    """Wait for a process to end; return whether it does. A zombie, which its new parent may keep, has ended."""
    for _ in range(100):
        command = ["ps", "-o", "stat=", "-p", str(process_id)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if state == "" or state.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_no_process_remains():
    with RankPool(1, env=HOST_ONLY) as pool:
        [rank], [child] = pool.run(host_launches.process_id), pool.run(host_launches.start_a_child)
    assert ends(rank)
    assert ends(child)
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(rank, 0)


def test_no_rank_is_rejected():
    with pytest.raises(ValueError, match=r"RankPool.world_size: got 0"):
        RankPool(0)


def local_function():
    def inner():
        pass

    return inner


@pytest.mark.parametrize("function", [lambda: None, partial(print, 1), local_function(), "print"])
def test_a_function_that_ranks_cannot_import_is_rejected(two_ranks, function):
    with pytest.raises(TypeError, match="top of a module's file"):
        two_ranks.run(function)


def double(number):
    return 2 * number


def test_functions_of_a_test_module_run(two_ranks):
    assert two_ranks.run(double, 3) == [6, 6]


def test_a_function_can_be_referenced_by_its_file(two_ranks, tmp_path):
    file = tmp_path / "triple.py"
    file.write_text("def triple(number):\n    return 3 * number\n")
    assert two_ranks.run(function_in(file, "triple"), 3) == [9, 9]
    assert "triple" not in sys.modules


def test_a_missing_name_is_reported(two_ranks, tmp_path):
    file = tmp_path / "nothing.py"
    file.write_text("")
    with pytest.raises(RankFailedError, match=r"AttributeError: .*triple"):
        two_ranks.run(function_in(file, "triple"))


def test_a_file_that_is_not_python_is_reported(one_rank, tmp_path):
    file = tmp_path / "triple.txt"
    file.write_text("")
    with pytest.raises(
        RankFailedError, match=r"ImportError: .*triple.txt, because that is not a Python source"
    ):
        one_rank.run(function_in(file, "triple"))


def test_a_missing_file_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"function_in.file: .*triple.py does not exist"):
        function_in(tmp_path / "triple.py", "triple")


def test_a_script_runs_its_own_functions_and_what_they_spawn(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import mb_host, multiprocessing\n"
        "class Box:\n    pass\n"
        "def box():\n    return Box()\n"
        "def spawned():\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as workers:\n"
        "        return workers.apply(box)\n"
        "if __name__ == '__main__':\n"
        "    print(isinstance(mb_host.run_ranks(spawned, 1)[0], Box))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.slow
def test_nothing_outlives_a_killed_launcher(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import mb_host, os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from host_launches import parent_id, process_id, start_a_child\n"
        "for method in ('fork', 'spawn'):\n"
        "    pool = mb_host.RankPool(1, start_method=method)\n"
        "    print(*pool.run(process_id), *pool.run(start_a_child), flush=True)\n"
        "    if method == 'fork' and sys.platform == 'linux':\n"
        "        print(*pool.run(parent_id), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    processes = [int(word) for word in done.stdout.split()]
    assert len(processes) == (5 if sys.platform == "linux" else 4)
    assert all(ends(process) for process in processes)


COUNTED = """
import os
print(os.environ["POOL"], flush=True)
if os.environ["POOL"] == "3":
    raise ValueError("not now")
"""
POOLS = """
import mb_host, os, sys
sys.path.insert(0, {folder!r})
from host_launches import environment, kill_parent, loaded, parent_id, process_id
servers = set()
for pool_number in (1, 2):
    os.environ["POOL"] = str(pool_number)
    with mb_host.RankPool(2, imports=["counted"]) as pool:
        assert pool.run(loaded, "counted") == [[True], [True]]
        assert pool.run(environment, "POOL") == [(str(pool_number),)] * 2
        servers |= {{*pool.run(parent_id)}}
[server] = servers
os.environ["POOL"] = "3"
with mb_host.RankPool(1, imports=["counted"]) as pool:
    print(*pool.run(process_id), flush=True)
    try:
        pool.run(kill_parent)
    except mb_host.RankFailedError as error:
        print(error.outcomes[0].summary, flush=True)
    pool.run(process_id)
"""


@pytest.mark.slow
@linux
def test_pools_share_a_fork_server_and_report_an_import_that_ends_it(tmp_path):
    script = tmp_path / "script.py"
    (tmp_path / "counted.py").write_text(COUNTED)
    script.write_text(POOLS.format(folder=str(Path(__file__).parent)))
    env = {**os.environ, **HOST_ONLY}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    first, rank, death, *others = done.stdout.splitlines()
    assert [first, death, {*others}] == ["1", "ended its process with exit code 255", {"3"}]
    assert ends(int(rank))
    assert "rank 0 of 1 raised ValueError: not now, running the start of a rank." in done.stderr


@linux
def test_a_process_with_threads_forks_no_rank(one_rank):
    [reason] = one_rank.run(host_launches.obstacle_in_a_fork_of_threads)
    assert reason.endswith(" threads are running after the imports")


@linux
def test_output_goes_where_the_output_of_the_launcher_goes(two_ranks, capfd):
    two_ranks.run(host_launches.process_id)
    with RankPool(1, env=HOST_ONLY) as pool:
        pool.run(host_launches.write, "to the file of capfd")
    assert "to the file of capfd" in capfd.readouterr().out


@linux
def test_ranks_with_another_environment_than_the_imports_are_new_interpreters(one_rank):
    name, value = "READ_BY_AN_IMPORT", "1"
    with RankPool(1, env={**HOST_ONLY, name: value}) as pool:
        assert pool.run(host_launches.environment, name) == [(value,)]
        assert pool.run(host_launches.parent_id) == [os.getpid()] != one_rank.run(host_launches.parent_id)
    assert name not in os.environ


def test_an_import_that_fails_is_reported(tmp_path):
    with (
        RankPool(1, env=HOST_ONLY, imports=["no_such_module"]) as pool,
        pytest.raises(
            RankFailedError, match=r"No module named 'no_such_module', running the start of a rank"
        ),
    ):
        pool.run(host_launches.summarize)


def test_the_first_failure_is_reported_first(two_ranks):
    with pytest.raises(RankFailedError) as caught:
        two_ranks.run(host_launches.raise_on, 1)
    headline, *rest = str(caught.value).splitlines()
    assert headline == (
        "run_ranks: rank 1 of 2 raised ValueError: boom on 1, running host_launches:raise_on."
    )
    assert [outcome.state for outcome in caught.value.outcomes] == ["raised", "running"]
    assert "in raise_on" in "\n".join(rest)
    assert "in barrier" in caught.value.outcomes[1].detail


@pytest.mark.parametrize(
    ("function", "death"),
    [
        (host_launches.crash, "died of SIGSEGV"),
        (host_launches.exit_on, "ended its process with exit code 3"),
    ],
)
def test_a_death_is_reported_with_its_cause(function, death):
    with pytest.raises(RankFailedError, match=f"rank 0 of 1 {death}") as caught:
        run_ranks(function, 1, 0, env=HOST_ONLY)
    assert ("in crash" in caught.value.outcomes[0].detail) == (function is host_launches.crash)


def test_a_rank_that_dies_is_reported_first_and_replaced(two_ranks):
    two_ranks.run(host_launches.process_id)  # the ranks are running: their start is not timed
    start = time.monotonic()
    with pytest.raises(RankFailedError, match="rank 1 of 2 died of SIGKILL") as caught:
        two_ranks.run(host_launches.kill, 1)
    assert time.monotonic() - start < 15
    assert caught.value.outcomes[0].state == "died"
    assert two_ranks.run(host_launches.summarize)[1].rank == 1


def test_a_rank_that_died_is_the_cause_also_where_a_peer_reported_earlier():
    arrived = [
        RankOutcome(rank=0, state="raised", summary="raised RuntimeError: Connection closed by peer"),
        RankOutcome(rank=2, state="returned", summary="returned"),
        RankOutcome(rank=1, state="died", summary="died of SIGKILL"),
    ]
    error = rank_failed_error(arrived, what="train")
    assert str(error).startswith("run_ranks: rank 1 of 3 died of SIGKILL, running train.")
    assert [each.rank for each in error.outcomes] == [1, 0, 2]


def test_a_hang_is_reported_with_stacks(two_ranks):
    with pytest.raises(RankTimeoutError) as caught:
        two_ranks.run(host_launches.hang_on, 1, timeout_seconds=2)
    assert str(caught.value).startswith(
        "run_ranks: host_launches:hang_on did not return within 2 s on rank 1 of 2;"
    )
    assert "in sleep_for_ever" in caught.value.outcomes[0].detail
    assert [(each.rank, each.state) for each in caught.value.outcomes] == [(1, "running"), (0, "returned")]
