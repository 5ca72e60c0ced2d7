"""Hugging Face folders that are converted once, and copies of checkpoints in that format, with small programs."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mb_checkpoint.conditions import source_is_folder
from mb_checkpoint.converted_weights import convert_once, converted_directory, source_of_weights
from mb_checkpoint.directories import weight_directories
from mb_checkpoint.errors import WeightConversionError
from mb_checkpoint.exported_weights import HuggingFaceCopies, hugging_face_copies
from mb_checkpoint.foreign_formats import why_no_source

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


@pytest.mark.parametrize(("also", "here", "number"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_one_rank_exports_if_it_is_requested(also, here, number):
    section = SimpleNamespace(also_save_hf_checkpoint=also, hf_source_path=None)
    assert len(hugging_face_copies(section, command=["x"], on_this_rank=here, log=print)) == number


def test_the_source_of_small_files_is_a_folder(folder):
    assert source_is_folder(str(folder), True) is None
    assert source_is_folder(str(folder / "config.json"), True) == "is not an existing folder"
    assert Path(folder).is_dir()
