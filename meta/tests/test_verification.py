"""Two records side by side: what is the same, and which difference is named."""

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mb_config import TrainingConfig
from mb_trainer.cli import app
from mb_trainer.commands import verify_resume
from mb_trainer.commands.verify_resume import (
    Cut,
    as_data,
    as_text,
    need_whole_runs,
    overrides_of_length,
)
from mb_trainer.verification.compare import Difference, Place, VerificationError, compare, read_record
from mb_trainer.verification.diagnosis import EXIT_CODES, condition_lines
from mb_trainer.verification.record import Killer

HELD = {"counters: step": "{step}", "random streams: torch": "ab{step}", "parameters: weight": "cd{step}"}
MADE = {"samples: tokens of chunk 0": "a{step},b{step} c{step},d{step}", "losses: lm loss": "2.{step}"}


def written(folder, *, steps, rank=0, start=0, held=HELD, made=MADE, reads=True, conditions=None):
    """Write what a recorder writes for some steps, the step before the first one being what was loaded."""
    folder.mkdir(exist_ok=True)
    began = {"kind": "start", "step": steps[0], "values": {"rank": str(rank), "reads": str(reads)}}
    rows = [{**began, "conditions": conditions or {}}]
    for step in steps:
        for kind, values in (("made", made), ("held", held)):
            if kind == "held" or step > steps[0]:
                filled = {name: text.format(step=step) for name, text in values.items()}
                rows.append({"kind": kind, "step": step, "values": filled})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"rank-{rank}.{start}.jsonl").write_text(lines)


def compared(tmp_path, **changed):
    """Compare three steps in one start with the same three in two, of which the second is changed."""
    written(tmp_path / "straight", steps=range(4))
    written(tmp_path / "cut", steps=range(3))
    written(tmp_path / "cut", steps=range(2, 4), start=1, **changed)
    return compare(read_record(tmp_path / "straight"), read_record(tmp_path / "cut"))


def test_the_same_twice_is_equal(tmp_path):
    verdict = compared(tmp_path)
    assert (verdict.equal, verdict.ranks, verdict.steps, verdict.resumed_at) == (True, 1, 3, (2,))
    assert {line.category: line.compared for line in verdict.lines} == {
        "samples": 3,
        "counters": 5,
        "random streams": 5,
        "losses": 3,
        "parameters": 5,
    }
    assert as_text(verdict, Cut(steps=3, step=2)).endswith("equal, bit for bit: 3 steps on 1 rank, cut at 2")
    assert as_data(verdict, Cut(steps=3, step=2))["first"] is None


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (
            {"held": {**HELD, "random streams: torch": "shuffled", "parameters: weight": "off"}},
            Difference(
                category="random streams",
                name="torch",
                place=Place(2, True, 0),
                straight="ab2",
                cut="shuffled",
            ),
        ),
        (
            {
                "made": {
                    **MADE,
                    "samples: tokens of chunk 0": "a{step},b{step} c{step},x",
                    "losses: lm loss": "9",
                }
            },
            Difference(
                category="samples",
                name="tokens of chunk 0, microbatch 1, sequence 1",
                place=Place(3, False, 0),
                straight="d3",
                cut="x",
            ),
        ),
        (
            {"made": {**MADE, "samples: tokens of chunk 0": "a{step},b{step}"}},
            Difference(
                category="samples",
                name="tokens of chunk 0, number of microbatches",
                place=Place(3, False, 0),
                straight="2",
                cut="1",
            ),
        ),
        (
            {"held": {name: text for name, text in HELD.items() if "weight" not in name}},
            Difference(
                category="parameters", name="weight", place=Place(2, True, 0), straight="cd2", cut="not there"
            ),
        ),
    ],
)
def test_the_first_difference_is_the_earliest_and_the_cause(tmp_path, changed, first):
    verdict = compared(tmp_path, **changed)
    assert (verdict.equal, verdict.first) == (False, first)
    assert str(first) in as_text(verdict, Cut(steps=3, step=2))
    assert as_data(verdict, Cut(steps=3, step=2))["first"]["straight"] == first.straight


SHUFFLED = {**HELD, "random streams: torch": "shuffled"}
RECORDED = {"threads": "2", "torch": "2.11"}


def fake_starts(monkeypatch, *, resumed=None, first=None, again=None):
    """Let starts write records without training: `resumed`, `first` and `again` replace what a start holds."""
    held = {("cut", 1): resumed, ("cut", 0): first, ("straight-again", 0): again}

    def begin(start, words, *, files):
        name = start.run.name
        steps = range(2, 4) if start.number else range(3 if name == "cut" else 4)
        start.record.parent.mkdir(parents=True, exist_ok=True)
        replaced = held.get((name, start.number)) or HELD
        written(start.record, steps=steps, start=start.number, held=replaced, conditions=RECORDED)

    monkeypatch.setattr(verify_resume, "begin", begin)


@pytest.mark.parametrize(
    ("starts", "conclusion", "code", "said"),
    [
        ({}, "equal", 0, "equal, bit for bit"),
        ({"resumed": SHUFFLED}, "resume differs", 1, "two straight runs: equal"),
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
    tmp_path, monkeypatch, starts, conclusion, code, said
):
    fake_starts(monkeypatch, **starts)
    cut = Cut(steps=3, step=2)
    proof = verify_resume.prove([], files=[], folder=tmp_path, processes=1, cut=cut)
    found = verify_resume.proof_as_data(proof, cut)
    assert (proof.conclusion, found["verdict"], EXIT_CODES[proof.conclusion]) == (
        conclusion,
        conclusion,
        code,
    )
    assert said in verify_resume.proof_as_text(proof, cut)
    assert (tmp_path / "records" / "straight-again").exists() == (conclusion != "equal")
    assert found["loaded_state_equal"] is ("resumed" not in starts)
    assert found["conditions"]["cut run, start 2, rank 0"] == RECORDED


def test_conditions_that_differ_between_starts_are_listed():
    same, other = {"threads": "2", "torch": "2.11"}, {"threads": "1", "torch": "2.11"}
    assert condition_lines({"straight run": same, "cut run": other}) == [
        "  conditions: torch: 2.11",
        "  threads differs: 2 in straight run; 1 in cut run",
    ]
    assert condition_lines({}) == []


def test_a_rank_that_wrote_nothing_is_a_difference(tmp_path):
    written(tmp_path / "straight", steps=range(2))
    written(tmp_path / "straight", steps=range(2), rank=1, reads=False)
    written(tmp_path / "cut", steps=range(2))
    verdict = compare(read_record(tmp_path / "straight"), read_record(tmp_path / "cut"))
    assert verdict.first == Difference(
        category="counters", name="step", place=Place(0, True, 1), straight="0", cut="not there"
    )


def test_a_cut_before_a_step_that_is_left_out_is_no_difference(tmp_path):
    """The straight run writes what it holds when it begins a step: not before one of the skip list."""
    written(tmp_path / "straight", steps=range(5))
    file = tmp_path / "straight" / "rank-0.0.jsonl"
    kept = [line for line in file.read_text().splitlines() if '"held", "step": 2' not in line]
    file.write_text("\n".join(kept) + "\n")
    written(tmp_path / "cut", steps=range(3))
    written(tmp_path / "cut", steps=range(2, 5), start=1)
    straight, cut = read_record(tmp_path / "straight"), read_record(tmp_path / "cut")
    assert (len(kept), compare(straight, cut).equal) == (9, True)
    assert not compare(cut, straight).equal  # what the straight run holds must be in the cut one


@pytest.mark.parametrize(
    ("section", "overrides"),
    [
        ({"train_iters": 500}, ("train.train_iters=20",)),
        ({"train_samples": 9000, "global_batch_size": 8}, ("train.train_samples=160",)),
        (
            {"train_samples": 9000, "global_batch_size": 8, "rampup_batch_size": [4, 4, 32]},
            ("train.train_iters=20", "train.train_samples=null"),
        ),
        ({"num_epochs": 2.0}, ("train.train_iters=20", "train.num_epochs=null")),
    ],
)
def test_a_proof_is_as_long_as_asked_however_a_recipe_counts(section, overrides):
    assert overrides_of_length(TrainingConfig(**section), 20) == overrides


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (Cut(steps=9, step=2), "the straight run ended after step 3, not 9"),
        (Cut(steps=3, step=1), r"the cut run went on at step \(2,\), not \(1,\)"),
    ],
)
def test_less_than_was_asked_for_is_no_proof(tmp_path, cut, said):
    with pytest.raises(VerificationError, match=said):
        need_whole_runs(compared(tmp_path), cut, folder=tmp_path)


def test_a_killed_process_leaves_half_a_line(tmp_path):
    written(tmp_path / "cut", steps=range(3))
    before = read_record(tmp_path / "cut")
    with (tmp_path / "cut" / "rank-0.0.jsonl").open("a") as file:
        file.write('{"kind": "he')
    assert read_record(tmp_path / "cut") == before


def test_two_ranks_read_together_what_one_reads(tmp_path):
    written(tmp_path / "one", steps=range(3))
    written(tmp_path / "two", steps=range(3), made={"samples: tokens of chunk 0": "d{step},b{step}"})
    written(tmp_path / "two", steps=range(3), made={"samples: tokens of chunk 0": "c{step} a{step}"}, rank=1)
    records = read_record(tmp_path / "one"), read_record(tmp_path / "two")
    assert compare(*records, same_ranks=False).equal
    assert not compare(*records).equal


def test_half_a_sequence_less_is_found_across_ranks(tmp_path):
    written(tmp_path / "one", steps=range(3))
    written(tmp_path / "two", steps=range(3), made={"samples: tokens of chunk 0": "a{step},b{step}"})
    verdict = compare(read_record(tmp_path / "one"), read_record(tmp_path / "two"), same_ranks=False)
    assert replace(verdict.first, place=Place(1, False, 0)) == Difference(
        category="samples",
        name="sequences of the global batch, number",
        place=Place(1, False, 0),
        straight="4",
        cut="2",
    )


def test_nothing_recorded_is_said(tmp_path):
    with pytest.raises(VerificationError, match="the run has recorded no step"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "8", "--cut", "8"], "leaves nothing to go on with"),
        (["--steps", "8", "--cut", "4", "--resume-nproc", "1,2"], "leaves nothing to go on with"),
        (["--resume-nproc", "none"], "must be a number above 0"),
        (["--kill", "--resume-nproc", "1"], "cannot be combined"),
        (["train.no_such_field=1"], "no_such_field"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, said):
    ended = CliRunner().invoke(app, ["verify-resume", *options])
    assert ended.exit_code == 2
    assert said in " ".join(ended.output.replace("│", " ").split())


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "something").touch()
    ended = CliRunner().invoke(app, ["verify-resume", "--out", str(tmp_path)])
    assert (ended.exit_code, "is not empty" in ended.output) == (1, True)


class Clock:
    """Seconds that pass only where somebody sleeps."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


def begin_step(killer, step):
    killer.on_train_step_start(SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=step))))


def test_steps_wait_for_a_background_save_ever_longer_and_not_once_it_is_whole(tmp_path):
    clock = Clock()
    killer = Killer(
        7, checkpoints=tmp_path, kill=False, pause=0.1, longest=0.2, clock=clock, sleep=clock.sleep
    )
    ends = []
    for step in (7, 8, 9, 10):
        begin_step(killer, step)
        ends.append(clock.seconds)
    assert ends == pytest.approx([0.0, 0.1, 0.3, 0.5])
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    begin_step(killer, 11)
    assert clock.seconds == ends[-1]


def test_the_process_is_killed_once_the_checkpoint_is_whole(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    child = os.fork()
    if child == 0:
        try:
            begin_step(Killer(7, checkpoints=tmp_path, kill=True), 8)
        finally:
            os._exit(0)  # whatever happened: a child must not go on as pytest
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
