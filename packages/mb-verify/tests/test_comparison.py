"""Two records: what is equal, and which difference is reported."""

import json
from dataclasses import replace

import pytest
from written_records import STATE, STEP, compared, written

from mb_verify import (
    Difference,
    Interruption,
    RecordFile,
    RecordPosition,
    compare,
    read_record,
)
from mb_verify.comparison.diagnosis import condition_lines
from mb_verify.comparison.verdict_text import verdict_as_data, verdict_as_text
from mb_verify.errors import VerificationError


def test_equal_records_are_equal(tmp_path):
    verdict = compared(tmp_path)
    assert (verdict.equal, verdict.ranks, verdict.last_step, verdict.resumed_at) == (True, 1, 3, (2,))
    assert {line.category: line.compared for line in verdict.lines} == {
        "samples": 3,
        "counters": 5,
        "random streams": 5,
        "losses": 3,
        "parameters": 5,
    }
    assert verdict_as_text(verdict, Interruption(steps=3, step=2)).endswith(
        "equal, bit for bit: 3 steps on 1 rank, interrupted at 2"
    )
    assert verdict_as_data(verdict, Interruption(steps=3, step=2))["first"] is None


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (
            {"state": {**STATE, "random streams: torch": "shuffled", "parameters: weight": "off"}},
            Difference(
                category="random streams",
                name="torch",
                position=RecordPosition(2, True, 0),
                uninterrupted="ab2",
                interrupted="shuffled",
            ),
        ),
        (
            {
                "step_values": {
                    **STEP,
                    "samples: tokens of chunk 0": "a{step},b{step} c{step},x",
                    "losses: lm loss": "9",
                }
            },
            Difference(
                category="samples",
                name="tokens of chunk 0, microbatch 1, sequence 1",
                position=RecordPosition(3, False, 0),
                uninterrupted="d3",
                interrupted="x",
            ),
        ),
        (
            {"step_values": {**STEP, "samples: tokens of chunk 0": "a{step},b{step}"}},
            Difference(
                category="samples",
                name="tokens of chunk 0, number of microbatches",
                position=RecordPosition(3, False, 0),
                uninterrupted="2",
                interrupted="1",
            ),
        ),
        (
            {"state": {name: text for name, text in STATE.items() if "weight" not in name}},
            Difference(
                category="parameters",
                name="weight",
                position=RecordPosition(2, True, 0),
                uninterrupted="cd2",
                interrupted="not there",
            ),
        ),
    ],
)
def test_the_first_difference_is_the_earliest_and_the_cause(tmp_path, changed, first):
    verdict = compared(tmp_path, **changed)
    assert (verdict.equal, verdict.first) == (False, first)
    assert str(first) in verdict_as_text(verdict, Interruption(steps=3, step=2))
    assert (
        verdict_as_data(verdict, Interruption(steps=3, step=2))["first"]["uninterrupted"]
        == first.uninterrupted
    )


def test_conditions_that_differ_between_starts_are_listed():
    same, other = {"threads": "2", "torch": "2.11"}, {"threads": "1", "torch": "2.11"}
    assert condition_lines({"uninterrupted run": same, "interrupted run": other}) == [
        "  conditions: torch: 2.11",
        "  threads differs: 2 in uninterrupted run; 1 in interrupted run",
    ]
    assert condition_lines({}) == []


def test_a_rank_without_a_record_is_a_difference(tmp_path):
    written(tmp_path / "uninterrupted", steps=range(2))
    written(tmp_path / "uninterrupted", steps=range(2), rank=1, reads=False)
    written(tmp_path / "interrupted", steps=range(2))
    verdict = compare(read_record(tmp_path / "uninterrupted"), read_record(tmp_path / "interrupted"))
    assert verdict.first == Difference(
        category="counters",
        name="step",
        position=RecordPosition(0, True, 1),
        uninterrupted="0",
        interrupted="not there",
    )


def test_a_cut_before_a_step_that_is_left_out_is_no_difference(tmp_path):
    """The uninterrupted run writes what it holds when it begins a step: not before one of the skip list."""
    written(tmp_path / "uninterrupted", steps=range(5))
    file = tmp_path / "uninterrupted" / "rank-0.0.jsonl"
    kept = [line for line in file.read_text().splitlines() if '"state", "step": 2' not in line]
    file.write_text("\n".join(kept) + "\n")
    written(tmp_path / "interrupted", steps=range(3))
    written(tmp_path / "interrupted", steps=range(2, 5), start=1)
    uninterrupted, interrupted = (
        read_record(tmp_path / "uninterrupted"),
        read_record(tmp_path / "interrupted"),
    )
    assert (len(kept), compare(uninterrupted, interrupted).equal) == (9, True)
    assert not compare(
        interrupted, uninterrupted
    ).equal  # what the uninterrupted run holds must be in the interrupted one


def test_a_start_that_recorded_nothing_does_not_count(tmp_path):
    written(tmp_path / "uninterrupted", steps=range(4))
    (tmp_path / "interrupted").mkdir()
    (tmp_path / "interrupted" / "rank-0.0.jsonl").touch()  # killed before its first line was complete
    written(tmp_path / "interrupted", steps=range(3), start=1)
    written(tmp_path / "interrupted", steps=range(2, 4), start=3)
    record = read_record(tmp_path / "interrupted")
    verdict = compare(read_record(tmp_path / "uninterrupted"), record)
    assert (record.started_at, verdict.equal, verdict.resumed_at, verdict.loaded_equal) == (
        (0, 2),
        True,
        (2,),
        True,
    )


def test_a_killed_process_leaves_half_a_line(tmp_path):
    written(tmp_path / "interrupted", steps=range(3))
    before = read_record(tmp_path / "interrupted")
    with (tmp_path / "interrupted" / "rank-0.0.jsonl").open("a") as file:
        file.write('{"kind": "sta')
    assert read_record(tmp_path / "interrupted") == before


def test_two_ranks_read_together_what_one_reads(tmp_path):
    written(tmp_path / "one", steps=range(3))
    written(tmp_path / "two", steps=range(3), step_values={"samples: tokens of chunk 0": "d{step},b{step}"})
    written(
        tmp_path / "two",
        steps=range(3),
        step_values={"samples: tokens of chunk 0": "c{step} a{step}"},
        rank=1,
    )
    records = read_record(tmp_path / "one"), read_record(tmp_path / "two")
    assert compare(*records, same_ranks=False).equal
    assert not compare(*records).equal


def test_half_a_sequence_less_is_found_across_ranks(tmp_path):
    written(tmp_path / "one", steps=range(3))
    written(tmp_path / "two", steps=range(3), step_values={"samples: tokens of chunk 0": "a{step},b{step}"})
    verdict = compare(read_record(tmp_path / "one"), read_record(tmp_path / "two"), same_ranks=False)
    assert replace(verdict.first, position=RecordPosition(1, False, 0)) == Difference(
        category="samples",
        name="sequences of the global batch, number",
        position=RecordPosition(1, False, 0),
        uninterrupted="4",
        interrupted="2",
    )


def test_a_sequence_less_is_found_in_its_microbatch(tmp_path):
    verdict = compared(tmp_path, step_values={"samples: tokens of chunk 0": "a{step},b{step} c{step}"})
    first = verdict.first
    assert (first.name, first.uninterrupted, first.interrupted) == (
        "tokens of chunk 0, number of sequences, microbatch 1",
        "2",
        "1",
    )


def test_a_microbatch_less_is_found(tmp_path):
    verdict = compared(tmp_path, step_values={"samples: tokens of chunk 0": "a{step},b{step}"})
    first = verdict.first
    assert (first.name, first.uninterrupted, first.interrupted) == (
        "tokens of chunk 0, number of microbatches",
        "2",
        "1",
    )


def test_a_record_without_values_of_the_kind_compared_is_an_error(tmp_path):
    written(tmp_path / "one", steps=range(3), reads=False)
    record = read_record(tmp_path / "one")
    with pytest.raises(VerificationError, match="recorded no values to compare"):
        compare(record, record, same_ranks=False)


def test_a_folder_without_a_record_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match="the run has recorded no step"):
        read_record(tmp_path)


NAN = float("nan")


@pytest.mark.parametrize("equal", [NAN, -0.0, 0.1 + 0.2, float("inf"), 3, True, None, "nan"])
def test_a_value_equals_itself_bit_for_bit(equal, tmp_path):
    assert compare(recorded(tmp_path / "a", equal), recorded(tmp_path / "b", equal)).equal


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (0.3, 0.1 + 0.2), (NAN, None)])
def test_values_with_other_bits_differ(one, other, tmp_path):
    verdict = compare(recorded(tmp_path / "a", one), recorded(tmp_path / "b", other))
    assert (verdict.first.uninterrupted, verdict.first.interrupted) == (str(one), str(other))


def recorded(folder, loss):
    record = RecordFile(folder)
    record.start(0)
    record.step(1, {"losses: loss": loss})
    return read_record(folder)


@pytest.mark.parametrize("number", [NAN, -0.0, 0.1 + 0.2])
def test_numbers_of_older_records_are_compared_in_the_same_way(number, tmp_path):
    for name in "ab":
        row = {"kind": "step", "step": 1, "values": {"losses: loss": number}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.0.jsonl").write_text(json.dumps(row) + "\n")
    assert compare(read_record(tmp_path / "a"), read_record(tmp_path / "b")).equal


def test_a_stream_that_is_neither_seeded_nor_used_is_not_compared(tmp_path):
    """A nanoGPT loop seeds torch only: numpy's stream differs in each process, and nothing draws from it."""
    written(tmp_path / "a", steps=range(4), state={**STATE, "random streams: numpy": "one"})
    written(tmp_path / "b", steps=range(3), state={**STATE, "random streams: numpy": "two"})
    written(tmp_path / "b", steps=range(2, 4), start=1, state={**STATE, "random streams: numpy": "three"})
    verdict = compare(read_record(tmp_path / "a"), read_record(tmp_path / "b"))
    assert (verdict.equal, verdict.loaded_equal, verdict.unseeded) == (True, True, ("numpy",))
    assert verdict_as_text(verdict, Interruption(steps=3, step=2)).splitlines()[-1] == (
        "not compared: numpy, which was not seeded, and from which neither run drew"
    )


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ("seeded", "seeded", "lost"),  # the checkpoint lacks it
        ("drawn{step}", "drawn{step}", "lost"),
        ("drawn{step}", "other", "other"),
        ("one", "drawn{step}", "two"),
    ],
)
def test_a_stream_that_was_seeded_or_used_is_compared(first, second, third, tmp_path):
    name = "random streams: numpy"
    written(tmp_path / "a", steps=range(4), state={**STATE, name: first})
    written(tmp_path / "b", steps=range(3), state={**STATE, name: second})
    written(tmp_path / "b", steps=range(2, 4), start=1, state={**STATE, name: third})
    verdict = compare(read_record(tmp_path / "a"), read_record(tmp_path / "b"))
    assert (verdict.equal, verdict.first.name, verdict.unseeded) == (False, "numpy", ())
    assert verdict.differs_before_interruption is (second != first)
