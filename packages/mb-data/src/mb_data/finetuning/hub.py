"""Rows of datasets of the Hugging Face hub as the files of a section. Imports `datasets` when rows are read."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_data.build_cache import resolve_cache_dir
from mb_data.collectives import rank_zero_first
from mb_data.errors import DataPathError, FormatLibraryError
from mb_data.finetuning.config import FinetuningDatasetConfig
from mb_data.finetuning.hub_config import (
    PRESETS,
    HFDatasetSourceConfig,
    HubPreset,
    PromptCompletionSFTPreprocessingConfig,
)


def with_files(config: FinetuningDatasetConfig) -> FinetuningDatasetConfig:
    """Return the section with the folder of its rows; the section itself if it names a folder.

    Collective over the default process group, if it is initialized: rank 0 writes the folder, once for the same rows.

    Raises:
        DataPathError: A dataset cannot be read, or a row lacks a column.
        FormatLibraryError: The library datasets is not installed.
    """
    if config.hf_dataset is None:
        return config
    folder = rank_zero_first(lambda: _write(config))
    return replace(
        config,
        dataset_root=str(folder),
        hf_dataset=None,
        hf_validation_dataset=None,
        hf_test_dataset=None,
        hf_validation_proportion=None,
        hf_output_root=None,
        hf_rewrite=False,
    )


def _write(config: FinetuningDatasetConfig) -> Path:
    """Write the files of all splits, and return their folder."""
    sources = _sources(config)
    form = None if config.preprocessing is None else asdict(config.preprocessing)
    text = json.dumps([{name: asdict(source) for name, source in sources.items()}, form], default=str)
    name = f"hub-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    root = (
        Path(config.hf_output_root).expanduser()
        if config.hf_output_root
        else resolve_cache_dir(config.cache_dir)
    )
    folder = root / name
    for split, source in sources.items():
        file = folder / f"{split}.jsonl"
        if file.exists() and not config.hf_rewrite:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # a kill leaves no file that seems complete
        with part.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(source, config))
        part.replace(file)
    return folder


def _sources(config: FinetuningDatasetConfig) -> dict[str, HFDatasetSourceConfig]:
    train, share = config.hf_dataset or HFDatasetSourceConfig(), config.hf_validation_proportion
    validation, test = config.hf_validation_dataset, config.hf_test_dataset
    sources = {"training": train}
    if config.do_validation:
        if share is not None:
            split, percent = _split(train), round(100 * share)
            sources["training"] = train.with_split(f"{split}[{percent}%:]")
            validation = train.with_split(f"{split}[:{percent}%]")
        sources["validation"] = validation or train.with_split("validation")
    if config.do_test:
        sources["test"] = test or train.with_split("test")
    return sources


def _preset(source: HFDatasetSourceConfig) -> HubPreset:
    return (
        PRESETS[source.dataset_name] if source.dataset_name else HubPreset(path=source.path_or_dataset or "")
    )


def _split(source: HFDatasetSourceConfig) -> str:
    return source.split or _preset(source).split


def _rows(source: HFDatasetSourceConfig, config: FinetuningDatasetConfig) -> Iterator[Mapping[str, Any]]:
    preset = _preset(source)
    for row in _load(source, preset):
        if preset.prompt is None:
            yield row
            continue
        form = config.preprocessing
        form = form if isinstance(form, PromptCompletionSFTPreprocessingConfig) else None
        columns = ("input", "output") if form is None else (form.prompt_column, form.completion_column)
        try:
            pair = preset.prompt.format(**row), _answer(row, preset.completion)
        except (KeyError, TypeError, IndexError) as error:
            raise DataPathError(
                f"dataset.hf_dataset: a row of {preset.path!r} has the columns {', '.join(row)}, and no {error}. The "
                f"name {source.dataset_name!r} is for rows with {preset.prompt!r} and {preset.completion!r}. Name "
                "another dataset by path_or_dataset, with its columns in dataset.preprocessing."
            ) from error
        texts = [text.strip(" ") for text in pair] if form is None or form.strip_whitespace else pair
        yield dict(zip(columns, texts, strict=True))


def _answer(row: Any, column: str) -> str:
    for name in column.split("."):
        row = row[name]
    return str(row[0] if isinstance(row, list) else row)


def _load(source: HFDatasetSourceConfig, preset: HubPreset) -> Any:
    try:
        return import_module("datasets").load_dataset(
            preset.path, source.subset or preset.subset, split=_split(source), **(source.load_kwargs or {})
        )
    except ModuleNotFoundError as error:
        raise FormatLibraryError(
            "dataset.hf_dataset: the library datasets is not installed; it reads the rows. Install it: "
            'pip install "mb-data[streaming]", or set dataset.dataset_root to a folder.'
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise DataPathError(
            f"dataset.hf_dataset: {preset.path!r} cannot be read ({str(error).strip().splitlines()[0]}). Correct it, "
            "download it on a machine with a network, or set dataset.dataset_root to a folder with files."
        ) from error
