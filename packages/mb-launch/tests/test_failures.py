"""Failures of ranks: recorded for the launcher, or printed once for all ranks."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mb_launch import Failure, print_once, read_failures, record_failure, report_failure
from mb_launch.ranks.failures import ERROR_FOLDER

FAILURE = Failure(rank=1, time=10.0, text="the cause", exit_code=2)


def torchrun_environment(folder, rank):
    (folder / str(rank)).mkdir()
    return {"TORCHELASTIC_ERROR_FILE": str(folder / str(rank) / "error.json")}


def test_under_torchrun_the_first_rank_that_fails_prints(tmp_path, capsys):
    for rank in (2, 0, 1):
        print_once(
            f"rank {rank}", environment=torchrun_environment(tmp_path, rank), is_logging_rank=rank == 1
        )
    assert capsys.readouterr().err == "error: rank 2\n"


def test_under_torchrun_ranks_that_fail_at_the_same_time_print_once(tmp_path, capsys):
    environments = [torchrun_environment(tmp_path, rank) for rank in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: print_once("no", environment=one, is_logging_rank=False), environments))
    assert capsys.readouterr().err == "error: no\n"


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_ERROR_FILE": ""}])
def test_elsewhere_the_logging_rank_prints(environment, capsys):
    print_once("quiet", environment=environment, is_logging_rank=False)
    print_once("loud", environment=environment, is_logging_rank=True)
    assert capsys.readouterr().err == "error: loud\n"


def test_a_rank_that_does_not_print_returns_only_after_the_other_has_printed(tmp_path, monkeypatch):
    printed = []

    class Slow:
        def write(self, text):
            time.sleep(0.05)
            printed.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Slow())
    environments = [torchrun_environment(tmp_path, rank) for rank in range(2)]

    def fail(environment):
        print_once("no", environment=environment, is_logging_rank=False)
        return "".join(printed)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fail, environments)) == ["error: no\n"] * 2


def test_a_failure_is_recorded_only_if_a_launcher_reads_it(tmp_path):
    assert record_failure(FAILURE, {}) is False
    assert record_failure(FAILURE, {ERROR_FOLDER: str(tmp_path)}) is True
    assert read_failures(tmp_path) == [FAILURE]


def test_a_report_goes_to_the_launcher_with_the_rank(tmp_path, capsys):
    environment = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", ERROR_FOLDER: str(tmp_path)}
    assert report_failure("no data", exit_code=5, environment=environment) == 5
    (found,) = read_failures(tmp_path)
    assert (found.rank, found.text, found.exit_code) == (3, "no data", 5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("environment", [{}, {"RANK": "unknown"}])
def test_a_report_without_a_launcher_is_printed(environment, capsys):
    assert report_failure("no data", exit_code=5, environment=environment) == 5
    assert capsys.readouterr().err == "error: no data\n"
