"""Failures of ranks: recorded for the launcher, or printed once for all ranks; the first cause among several."""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from mb_launch import (
    Failure,
    common_rerun_code,
    first_failure,
    print_once,
    read_failures,
    record_failure,
    report_failure,
)
from mb_launch.ranks.failures import ERROR_FOLDER, timed_failure

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


def test_a_report_has_the_time_at_which_the_error_was_raised(tmp_path, monkeypatch):
    clock = iter([5.0, 6.0])
    monkeypatch.setattr("time.time", lambda: next(clock))
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", ERROR_FOLDER: str(tmp_path)}
    try:
        with timed_failure(), timed_failure():
            raise ValueError("the cause")
    except ValueError:  # after the process group is closed, and a partner has reported that
        report_failure("the cause", exit_code=1, environment=environment)
    report_failure("no exception", exit_code=1, environment={**environment, "RANK": "1"})
    assert {found.rank: found.time for found in read_failures(tmp_path)} == {0: 5.0, 1: 6.0}


@pytest.mark.parametrize("environment", [{}, {"RANK": "unknown"}])
def test_a_report_without_a_launcher_is_printed(environment, capsys):
    assert report_failure("no data", exit_code=5, environment=environment) == 5
    assert capsys.readouterr().err == "error: no data\n"


def test_a_rank_that_is_ended_while_it_records_its_failure_has_recorded_none(tmp_path, monkeypatch):
    write_text = Path.write_text

    def ended(path, text, **encoding):
        write_text(path, text[: len(text) // 2], **encoding)
        raise KeyboardInterrupt

    record_failure(FAILURE, {ERROR_FOLDER: str(tmp_path)})
    monkeypatch.setattr(Path, "write_text", ended)
    with pytest.raises(KeyboardInterrupt):
        record_failure(
            Failure(rank=0, time=11.0, text="no partner", exit_code=1), {ERROR_FOLDER: str(tmp_path)}
        )
    assert read_failures(tmp_path) == [FAILURE]


LATER = Failure(rank=0, time=20.0, text="connection closed by peer", exit_code=1)
EARLIER = Failure(rank=1, time=10.0, text="the cause", exit_code=2)


def ended(**codes):
    return {int(rank[1:]): SimpleNamespace(exitcode=code) for rank, code in codes.items()}


def test_the_earliest_failure_is_the_cause(tmp_path):
    found = first_failure(ended(r0=1, r1=2), [LATER, EARLIER], logs=tmp_path)
    assert found == Failure(rank=1, time=10.0, text="rank 1: the cause", exit_code=2)


def test_a_killed_rank_is_the_cause_of_the_other_failures(tmp_path):
    found = first_failure(ended(r0=1, r2=-signal.SIGKILL), [LATER], logs=tmp_path)
    assert (found.rank, found.text, found.exit_code) == (2, "rank 2 was killed by SIGKILL", 1)


def test_a_rank_that_the_launcher_terminated_is_not_the_cause(tmp_path):
    found = first_failure(ended(r0=-signal.SIGTERM), [LATER], logs=tmp_path)
    assert found.text == "rank 0: connection closed by peer"


def test_a_signal_without_a_name_is_a_number():
    assert first_failure(ended(r0=-40), []).text == "rank 0 was killed by signal 40"


def test_an_exit_code_without_a_record_is_the_cause_of_recorded_failures():
    found = first_failure(ended(r0=1, r1=7), [LATER])
    assert (found.rank, found.text) == (1, "rank 1 ended with exit code 7, without an error")


def test_a_rank_that_a_forwarded_signal_ended_is_not_called_killed():
    assert first_failure(ended(r0=-signal.SIGTERM), []).text == (
        "rank 0 was ended by SIGTERM, which its launcher forwarded: it has no handler for it, or was still starting"
    )


def test_without_a_record_the_end_of_stderr_is_shown(tmp_path):
    file = tmp_path / "run" / "attempt_0" / "1" / "stderr.log"
    file.parent.mkdir(parents=True)
    file.write_text("one\ntwo\n")
    found = first_failure(ended(r1=3), [], logs=tmp_path)
    assert found.text == "rank 1 ended with exit code 3; end of its stderr:\none\ntwo"
    assert found.message == "rank 1 ended with exit code 3"
    assert first_failure(ended(r1=3), []).text == "rank 1 ended with exit code 3"


@pytest.mark.parametrize(
    ("codes", "common"),
    [
        ([16, 16], 16),
        ([17, -signal.SIGTERM], 17),
        ([16, 1], None),
        ([16, 17], None),
        ([3], None),
        ([-9], None),
    ],
)
def test_the_exit_codes_of_the_rerun_machine_are_passed_through(codes, common):
    assert common_rerun_code(codes) == common
