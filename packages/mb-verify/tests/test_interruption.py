"""Both runs of a proof, through starts that write records without training."""

import pytest
from written_records import STATE, compared, written

from mb_verify import (
    EXIT_CODES,
    Interruption,
    proof_as_data,
    proof_as_text,
    prove,
)
from mb_verify.errors import InterruptionError, VerificationError
from mb_verify.resume.interruption import require_complete_runs, starts_of_interrupted_run

SHUFFLED = {**STATE, "random streams: torch": "shuffled"}
RECORDED = {"threads": "2", "torch": "2.11"}


def starts_that_record(*, resumed=None, first=None, again=None):
    """Return a function that writes a start's record; `resumed`, `first` and `again` replace the state of a start."""
    states = {("interrupted", 1): resumed, ("interrupted", 0): first, ("uninterrupted-again", 0): again}

    def make_start(start):
        name = start.run.name
        steps = range(2, 4) if start.number else range(3 if name == "interrupted" else 4)
        start.record.parent.mkdir(parents=True, exist_ok=True)
        state = states.get((name, start.number)) or STATE
        written(start.record, steps=steps, start=start.number, state=state, conditions=RECORDED)

    return make_start


@pytest.mark.parametrize(
    ("starts", "conclusion", "code", "printed"),
    [
        ({}, "equal", 0, "equal, bit for bit"),
        ({"resumed": SHUFFLED}, "resume differs", 1, "two uninterrupted runs: equal"),
        ({"first": SHUFFLED}, "not repeatable", 3, "the first difference is before the interruption"),
        (
            {"resumed": SHUFFLED, "again": SHUFFLED},
            "not repeatable",
            3,
            "in the first, shuffled in the second",
        ),
    ],
)
def test_a_machine_that_repeats_no_run_is_not_blamed_on_the_resume(
    tmp_path, starts, conclusion, code, printed
):
    interrupted = Interruption(steps=3, step=2)
    proof = prove(starts_that_record(**starts), folder=tmp_path, processes=1, interruption=interrupted)
    found = proof_as_data(proof, interrupted)
    assert (proof.conclusion, found["verdict"], EXIT_CODES[proof.conclusion]) == (
        conclusion,
        conclusion,
        code,
    )
    assert printed in proof_as_text(proof, interrupted)
    assert (tmp_path / "records" / "uninterrupted-again").exists() == (conclusion != "equal")
    assert found["loaded_state_equal"] is ("resumed" not in starts)
    assert found["conditions"]["interrupted run, start 2, rank 0"] == RECORDED


@pytest.mark.parametrize(
    ("interrupted", "message"),
    [
        (Interruption(steps=9, step=2), "the uninterrupted run ended after step 3, not 9"),
        (Interruption(steps=3, step=1), r"the interrupted run resumed at step \(2,\), not \(1,\)"),
    ],
)
def test_an_incomplete_run_is_no_proof(tmp_path, interrupted, message):
    with pytest.raises(VerificationError, match=message):
        require_complete_runs(compared(tmp_path), interrupted, folder=tmp_path)


def test_the_starts_of_an_interrupted_run_leave_and_of_a_killed_one_save(tmp_path):
    left = starts_of_interrupted_run(
        Interruption(steps=9, step=3, resumed_by=(2, 1)), folder=tmp_path, processes=1
    )
    assert [(each.processes, each.leave_every) for each in left] == [(1, 3), (2, 3), (1, None)]
    killed = starts_of_interrupted_run(Interruption(steps=9, step=3, kill=True), folder=tmp_path, processes=1)
    assert [(each.save_every, each.leave_every, each.kill_after) for each in killed] == [
        (3, None, 3),
        (3, None, None),
    ]
    assert [each.name for each in killed] == ["interrupted run", "interrupted run, start 2"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 8, "step": 8}, "step: 8 leaves nothing to resume in 8 steps"),
        ({"steps": 8, "step": 4, "resumed_by": (1, 2)}, "step: 4 leaves nothing to resume in 8 steps"),
        ({"steps": 8, "step": 0}, "step: 0 is before the first step"),
        ({"steps": 8, "step": 2, "resumed_by": (0,)}, r"resumed_by: \(0,\) has a number below 1"),
        (
            {"steps": 8, "step": 2, "resumed_by": (1,), "kill": True},
            "kill: cannot be combined with resumed_by",
        ),
        ({"steps": 8, "step": 1, "kill": True}, "kill: needs a step of at least 2"),
    ],
)
def test_impossible_interruptions_are_rejected(fields, message):
    with pytest.raises(InterruptionError, match=message):
        Interruption(**fields)


def test_a_folder_with_files_is_rejected_and_without_one_a_temporary_folder_is_used(tmp_path):
    interrupted, folders = Interruption(steps=3, step=2), []
    (tmp_path / "something").touch()
    with pytest.raises(VerificationError, match="is not empty, and both runs must start afresh"):
        prove(starts_that_record(), folder=tmp_path, interruption=interrupted)

    def make_start(start):
        folders.append(start.run.parent)
        starts_that_record()(start)

    assert prove(make_start, interruption=interrupted).conclusion == "equal"
    assert not folders[0].exists()


def test_a_random_stream_without_a_seed_is_named(tmp_path):
    interrupted = Interruption(steps=3, step=2)
    starts = starts_that_record(first=SHUFFLED, resumed=SHUFFLED, again=SHUFFLED)
    proof = prove(starts, folder=tmp_path / "proof", interruption=interrupted)
    assert "  torch may have no seed: seed every random stream, used or not" in proof_as_text(
        proof, interrupted
    )
