"""Hugging Face folders that are converted once, and copies of checkpoints in that format, with small programs."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import rank_work

from mb_checkpoint.errors import WeightConversionError
from mb_checkpoint.formats.converted_weights import convert_once, converted_directory, source_of_weights
from mb_checkpoint.formats.foreign import why_no_source
from mb_checkpoint.load.directories import weight_directories
from mb_checkpoint.rules.conditions import source_is_folder
from mb_checkpoint.save.exported_weights import ExportShare, HuggingFaceCopies, hugging_face_copies

CONVERTS = """
import pathlib, sys
out = pathlib.Path(sys.argv[3], "checkpoints")
out.mkdir(parents=True)
(out / "latest_checkpointed_iteration.txt").write_text("0")
"""
EXPORTS = """
import os, pathlib, sys
assert "RANK" not in os.environ
out = pathlib.Path(sys.argv[3])
out.mkdir()
(out / "config.json").write_text(sys.argv[1])
"""
FAILS = "import sys; sys.exit('error: config.json: lacks vocab_size')"


def program(text):
    return [sys.executable, "-c", text]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder that looks like a model in Hugging Face format; conversions are cached next to it."""
    monkeypatch.setenv("MB_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_folder_is_converted_once(folder, tmp_path):
    lines = []
    for _ in range(2):
        convert_once(str(folder), command=program(CONVERTS), log=lines.append)
    target = converted_directory(folder)
    assert len(lines) == 1
    assert target.parent.parent == tmp_path / "cache" / "weights"
    assert source_of_weights(str(folder)) == str(target)
    assert (why_no_source(str(folder), resume=False), weight_directories(folder)) == (None, [folder])


def test_other_content_is_another_conversion(folder):
    before = converted_directory(folder)
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert converted_directory(folder) != before


def test_an_interrupted_conversion_is_repeated(folder):
    (converted_directory(folder) / "half").mkdir(parents=True)
    convert_once(str(folder), command=program(CONVERTS), log=print)
    assert [path.name for path in converted_directory(folder).iterdir()] == [
        "latest_checkpointed_iteration.txt"
    ]


@pytest.mark.parametrize("named", [None, "runs/gpt_tiny"])
def test_other_weights_are_not_converted(named):
    convert_once(named, command=["false"], log=print)
    assert named is None or source_of_weights(named) == named


def test_the_reason_of_a_failed_conversion_is_reported(folder):
    with pytest.raises(
        WeightConversionError, match=r"llama could not be converted\. config.json: lacks vocab_size"
    ):
        convert_once(str(folder), command=program(FAILS), log=print)


def saved(path, *, non_persistent=False):
    path.mkdir()
    return SimpleNamespace(save=SimpleNamespace(step=7, non_persistent=non_persistent, path=path))


def test_each_checkpoint_is_exported_while_training_continues(folder, tmp_path):
    lines = []
    environment = {**os.environ, "RANK": "3"}
    copies = HuggingFaceCopies(
        program(EXPORTS), source=str(folder), log=lines.append, environment=environment
    )
    for name in ("one", "two"):
        copies.on_checkpoint_save(saved(tmp_path / name))
    copies.on_checkpoint_save(saved(tmp_path / "three", non_persistent=True))
    copies.on_train_end(None)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/hf/*"))
    assert found == [
        f"{name}/hf/{file}.json" for name in ("one", "two") for file in ("config", "generation_config")
    ]
    assert (tmp_path / "one" / "hf" / "config.json").read_text() == str(tmp_path / "one")
    assert lines[-1] == f"  step 7 in Hugging Face format in {tmp_path / 'two' / 'hf'}"


@pytest.mark.parametrize(
    ("command", "reason"), [(program(FAILS), "lacks vocab_size"), (["/no/such"], "No such file")]
)
def test_a_failed_export_is_a_warning(command, reason, tmp_path):
    lines = []
    copies = HuggingFaceCopies(command, source=None, log=lines.append)
    copies.on_checkpoint_save(saved(tmp_path / "one"))
    copies.on_train_end(None)
    assert [line.startswith("warning: checkpoint.also_save_hf_checkpoint: step 7: ") for line in lines] == [
        True
    ]
    assert reason in lines[0]
    assert list((tmp_path / "one").iterdir()) == []


def test_the_remains_of_a_killed_export_are_removed_by_the_next_one(tmp_path):
    (tmp_path / "iter_1" / ".hf-writing" / "folder").mkdir(parents=True)
    (tmp_path / "other" / ".hf-writing").mkdir(parents=True)  # of no checkpoint
    copies = HuggingFaceCopies(program(EXPORTS), source=None, log=print)
    copies.on_checkpoint_save(saved(tmp_path / "iter_2"))
    copies.on_train_end(None)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == [
        "iter_2/hf",
        "other/.hf-writing",
    ]


def test_a_copy_that_cannot_be_completed_leaves_nothing(tmp_path):
    lines = []
    copies = HuggingFaceCopies(program(EXPORTS), source=str(tmp_path / "gone"), log=lines.append)
    copies.on_checkpoint_save(saved(tmp_path / "iter_1"))
    copies.on_train_end(None)
    assert "No such file or directory" in lines[0]
    assert list((tmp_path / "iter_1").iterdir()) == []


@pytest.mark.parametrize(
    ("also", "divided", "rank", "number"),
    [(True, False, 1, 1), (True, False, 0, 0), (True, True, 0, 1), (False, False, 1, 0)],
)
def test_one_rank_exports_if_it_is_requested_or_all_ranks_do(also, divided, rank, number):
    section = SimpleNamespace(
        also_save_hf_checkpoint=also,
        hf_source_path=None,
        hf_distributed_save=divided,
        hf_save_every_n_ranks=1,
    )
    ranks = SimpleNamespace(rank=rank, world_size=2, is_logging_rank=rank == 1)
    assert len(hugging_face_copies(section, command=["x"], ranks=ranks, log=print)) == number


@pytest.mark.parametrize(
    ("every", "world", "parts"),
    [(1, 4, [0, 1, 2, 3]), (2, 4, [0, None, 1, None]), (3, 4, [0, None, None, 1]), (8, 2, [0, None])],
)
def test_every_nth_rank_has_a_part(every, world, parts):
    ranks = [
        SimpleNamespace(rank=rank, world_size=world, is_logging_rank=rank == world - 1)
        for rank in range(world)
    ]
    shares = [ExportShare.of(each, every=every) for each in ranks]
    assert [share.part for share in shares] == parts
    assert {share.parts for share in shares} == {len(parts) - parts.count(None)}


@pytest.mark.parametrize(("every", "parts"), [(1, 4), (3, 2)])
def test_four_ranks_write_a_copy_together(every, parts, four_ranks, tmp_path):
    logs = four_ranks.run(rank_work.distributed_copies, tmp_path, every, None, "finished")
    assert logs[:3] == [[], [], []]
    assert logs[3] == [
        f"  step {step} in Hugging Face format in {tmp_path / f'iter_{step}' / 'hf'}" for step in (1, 2)
    ]
    for step in (1, 2):
        folder = tmp_path / f"iter_{step}"
        assert sorted(file.name for file in (folder / "hf").iterdir()) == [
            f"{part}-of-{parts}" for part in range(parts)
        ]
        assert [each.name for each in folder.iterdir()] == ["hf"]


def test_a_part_that_fails_on_one_rank_is_a_warning_of_the_logging_rank(four_ranks, tmp_path):
    logs = four_ranks.run(rank_work.distributed_copies, tmp_path, 1, 2, "finished")
    reason = "warning: checkpoint.also_save_hf_checkpoint: step {}: the disk is full"
    assert logs == [[], [], [], [reason.format(1), reason.format(2)]]
    assert list(tmp_path.glob("*/*")) == []


def test_an_exception_leaves_the_last_copy_under_its_other_name(four_ranks, tmp_path):
    logs = four_ranks.run(rank_work.distributed_copies, tmp_path, 1, None, None)
    assert "step 2: the run failed before all ranks had written their parts" in logs[3][1]
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [".hf-writing", "hf"]


def test_one_layer_of_a_stack_is_read_by_itself(one_rank, tmp_path):
    [(changed, equal, left_out)] = one_rank.run(rank_work.selected_weights, tmp_path)
    assert (equal, {name.split(".mlp.")[0] for name in changed}) == (True, {"module.decoder.layers.1"})
    assert left_out > 0.5


def test_the_source_of_small_files_is_a_folder(folder):
    assert source_is_folder.test(str(folder), same_machine=True) is None
    assert (
        source_is_folder.test(str(folder / "config.json"), same_machine=True) == "is not an existing folder"
    )
    assert Path(folder).is_dir()
