"""The first cause among several failures, without processes."""

import signal
from types import SimpleNamespace

import pytest

from mb_launch import Failure, common_rerun_code, first_failure

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
