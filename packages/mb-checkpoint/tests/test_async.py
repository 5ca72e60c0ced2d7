"""Background saves: staged contents, training during a save, and failures of the writer."""

from pathlib import Path

import async_work
import pytest
import rank_work
import tiny_work

from mb_checkpoint import select_checkpoint
from mb_checkpoint.save.spawn import FreshInterpreter

LAYOUTS = {"one process, a fresh interpreter": "spawn", "DP2, distributed optimizer": "fork"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_resumed_from_a_background_save_equals_a_straight_one(layout, request, tmp_path):
    """The weights are overwritten as soon as save returns, so this also shows that they were staged."""
    ranks = request.getfixturevalue("one_rank" if layout.startswith("one") else "two_ranks")
    shape, folder = {"dist_opt": not layout.startswith("one")}, str(tmp_path)
    straight = ranks.run(rank_work.train_uninterrupted, shape, 4)
    section = {"save": folder, "async_write_results_mp_mode": LAYOUTS[layout]}
    before = ranks.run(async_work.first_part_in_background, shape, section, 2)
    after = ranks.run(rank_work.second_part, shape, {"load": folder}, 2)
    assert [first[0] + second[0] for first, second in zip(before, after, strict=True)] == [
        losses for losses, _ in straight
    ]
    assert [fingerprint for _, fingerprint, _ in after] == [fingerprint for _, fingerprint in straight]
    assert before[0][1] == f"scheduled an async checkpoint save at iteration       2 to {folder}"
    assert before[0][2].message == f"successfully saved checkpoint from iteration       2 to {folder}"


def test_training_continues_and_the_outcome_is_returned_once(one_rank, tmp_path):
    ((first, outcomes, again, same),) = one_rank.run(async_work.train_during_save, {"save": str(tmp_path)})
    assert outcomes == [("SavedCheckpoint", 1, True)]
    assert again is None
    assert same, "the memory for copies is used again"
    assert first < 3.0, "the first save must not wait for a process that imports everything again"


TROUBLES = {
    "killed": "the writer process died by SIGKILL",
    "stopped": "the writer process wrote nothing for 1 s and was killed",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_writer_that_dies_or_hangs_is_reported_on_every_rank_and_replaced(two_ranks, tmp_path, trouble):
    section = {"save": str(tmp_path), "async_hang_seconds": 1.0}
    outcomes = two_ranks.run(async_work.save_with_writer_failure, section, trouble, 1)
    assert [each[0] for each in outcomes] == ["FailedSave"] * 2
    assert all(f"rank 1: {TROUBLES[trouble]}" in each[1] for each in outcomes)
    assert len({each[2] for each in outcomes}) == 1, "all ranks receive it at the same poll"
    assert [each[3:5] for each in outcomes] == [("SavedCheckpoint", 3)] * 2
    there = sum(file.stat().st_size for file in (tmp_path / "iter_0000003").iterdir())
    assert [each[5] for each in outcomes] == [
        there - (tmp_path / "iter_0000003" / "manifest.json").stat().st_size
    ] * 2
    assert sorted(path.name for path in Path(tmp_path).glob("iter_*")) == ["iter_0000001", "iter_0000003"]
    assert select_checkpoint(tmp_path).step == 3


def test_a_new_interpreter_does_not_repeat_the_warning_of_pynvml_and_prints_others(
    tmp_path, monkeypatch, capfd
):
    """torch imports pynvml, whose package warns; here a module of its name."""
    text = "import warnings\nwarnings.warn('{}', FutureWarning)\n"
    (tmp_path / "pynvml.py").write_text(text.format("The pynvml package is deprecated. Install another."))
    (tmp_path / "other.py").write_text(f"import pynvml\n{text.format('another')}\ndef serve():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    process = FreshInterpreter("other", "serve", (), ())
    process.join()
    assert process.exitcode == 0
    printed = capfd.readouterr().err
    assert "FutureWarning: another" in printed
    assert "pynvml package" not in printed


def test_an_error_of_the_writer_is_reported_with_its_cause(one_rank, tmp_path):
    (message,) = one_rank.run(async_work.lose_staging_folder, {"save": str(tmp_path)})
    assert "rank 0: No such file or directory" in message


def test_a_failed_save_ends_the_run_only_on_request(one_rank, tmp_path):
    section = {"save": str(tmp_path), "on_save_error": "raise"}
    ((kind, message, _),) = one_rank.run(rank_work.error_of, async_work.lose_staging_folder, section)
    assert (kind, "No such file or directory" in message) == ("CheckpointSaveError", True)


def test_configuration_and_counters_are_those_of_the_moment_of_the_save(one_rank, tmp_path):
    assert one_rank.run(rank_work.change_after_save, {"save": str(tmp_path)}) == [("as of the save\n", 8)]


def test_a_writer_does_one_job_at_a_time(one_rank, tmp_path):
    ((kind, message, _),) = one_rank.run(rank_work.error_of, tiny_work.two_jobs_at_once, tmp_path)
    assert (kind, "a save is in progress. Call finalize_async_saves" in message) == ("RuntimeError", True)


@pytest.mark.parametrize(
    "shape", [{}, {"bf16": True}, {"bf16": True, "dist_opt": True}], ids=["float32", "BF16", "sharded"]
)
def test_what_is_reserved_ahead_is_what_the_ranks_write(shape, two_ranks, tmp_path):
    """The tensors are tiny, so that padding and the pickled job make a part of the memory."""
    both = two_ranks.run(async_work.reserve_and_save, shape, {"save": str(tmp_path)})
    reserved, used = (sum(each[index] for each in both) for index in (0, 1))
    assert 0.8 * used < reserved < 1.2 * used, both
