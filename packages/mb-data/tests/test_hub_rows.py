"""Rows that `datasets` loads as files of a section: presets, splits, a proportion for validation, and errors."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    TokenizerConfig,
    build_finetuning_datasets,
)
from mb_data.data_checks import dataset_facts, training_epoch_samples
from mb_data.errors import DataPathError, FormatLibraryError
from mb_data.finetuning import hub
from mb_data.finetuning.hub_config import HFDatasetSourceConfig, PromptCompletionSFTPreprocessingConfig

ROWS = [
    {"context": f"C{number}", "question": f"Q{number}? ", "answers": {"text": [f" A{number}", "other"]}}
    for number in range(10)
]


@pytest.fixture
def section(tmp_path, monkeypatch):
    """Return a function for the section of the preset squad, whose rows are a file here."""
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "PRESETS", {"squad": replace(hub.PRESETS["squad"], path="json")})
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def build(**fields):
        options = {"data_files": str(rows), "cache_dir": str(tmp_path / "arrow")}
        return FinetuningDatasetConfig(
            seq_length=64,
            hf_dataset=HFDatasetSourceConfig(dataset_name="squad", load_kwargs=options),
            hf_output_root=str(tmp_path / "out"),
            do_test=False,
            **fields,
        )

    build.rows = rows
    return build


def written(config, split):
    folder = Path(hub.with_files(config).dataset_root)
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_rows_of_a_preset_are_its_prompts_and_first_answers(section):
    found = written(section(do_validation=False), "training")
    assert found[3] == {"input": "Context: C3 Question: Q3?  Answer:", "output": "A3"}
    assert len(found) == 10


def test_rows_of_another_dataset_may_have_the_columns_of_a_preset(section):
    config = section(do_validation=False)
    preset = written(config, "training")
    config.hf_dataset = HFDatasetSourceConfig(
        path_or_dataset="json", schema_adapter="squad", load_kwargs=config.hf_dataset.load_kwargs
    )
    assert written(config, "training") == preset
    config.hf_dataset.schema_adapter = None
    assert written(config, "training") == ROWS


def test_columns_and_spaces_are_those_of_the_preprocessing(section):
    form = PromptCompletionSFTPreprocessingConfig(prompt_column="p", completion_column="c")
    assert written(section(do_validation=False, preprocessing=form), "training")[3]["c"] == "A3"
    as_it_is = PromptCompletionSFTPreprocessingConfig(
        prompt_column="p", completion_column="c", strip_whitespace=False
    )
    assert written(section(do_validation=False, preprocessing=as_it_is), "training")[3]["c"] == " A3"


def test_a_proportion_divides_the_rows_without_a_common_one(section):
    config = section(hf_validation_proportion=0.2)
    validation, training = (written(config, split) for split in ("validation", "training"))
    assert (len(validation), len(training)) == (2, 8)
    assert [*validation, *training] == written(section(do_validation=False), "training")


def test_files_are_kept_until_they_are_to_be_written_again(section):
    config = section(do_validation=False)
    first = written(config, "training")
    section.rows.write_text(json.dumps(ROWS[0]) + "\n")
    assert written(config, "training") == first
    context = DatasetBuildContext(
        train_samples=1, valid_samples=0, test_samples=0, tokenizer=ByteTokenizer(), reads_data=True
    )
    config.cache_dir = str(section.rows.parent / "cache")
    assert build_finetuning_datasets(config, context)[0].epoch == 10
    config.hf_rewrite = True
    assert build_finetuning_datasets(config, context)[0].epoch == 1


@pytest.mark.parametrize(("share", "expected"), [(0.125, 1), (0.07, 1), (0.5, 4), (0.97, 8)])
def test_a_proportion_is_one_of_the_rows_and_not_of_whole_percents(section, share, expected):
    config = section(hf_validation_proportion=share)
    config.hf_dataset.split = "train[:80%]"  # of ten rows
    validation, training = (written(config, split) for split in ("validation", "training"))
    assert (len(validation), len(training)) == (expected, 8 - expected)
    config.hf_validation_proportion = None
    config.do_validation = False
    assert [*validation, *training] == written(config, "training")


def test_rows_of_the_hub_are_no_missing_files_and_have_an_epoch(section, tmp_path):
    config = section(hf_validation_proportion=0.2, cache_dir=str(tmp_path / "cache"))
    assert dataset_facts(config, evaluated=True) == {}
    assert training_epoch_samples(TokenizerConfig(tokenizer_type="ByteTokenizer"), config) == 8


def test_a_row_without_the_columns_of_the_preset(section):
    section.rows.write_text('{"context": "C", "question": "Q"}\n')
    with pytest.raises(DataPathError, match="has the columns context, question, and no 'answers'"):
        hub.with_files(section(do_validation=False))


def test_an_unknown_name_for_validation_is_an_error(section):
    with pytest.raises(DataPathError, match="'acme' is not one of squad"):
        hub.with_files(section(hf_validation_dataset=HFDatasetSourceConfig(dataset_name="acme")))


def test_what_cannot_be_read_is_named(section, tmp_path):
    section.rows.unlink()
    with pytest.raises(DataPathError, match="'json' cannot be read"):
        hub.with_files(section(do_validation=False))


def test_the_missing_library_is_named(section, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FormatLibraryError, match=r'pip install "mb-data\[streaming\]"'):
        hub.with_files(section(do_validation=False))


def test_a_folder_is_used_as_it_is(tmp_path):
    config = FinetuningDatasetConfig(seq_length=64, dataset_root=str(tmp_path))
    assert hub.with_files(config) is config
