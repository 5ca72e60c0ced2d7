"""Rows of datasets of the Hugging Face hub as the files of a section. No torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mb_data.build_cache import one_builder, resolve_cache_dir
from mb_data.errors import DataPathError
from mb_data.finetuning.config import FinetuningDatasetConfig
from mb_data.finetuning.hub_config import (
    PRESETS,
    HFDatasetSourceConfig,
    HubPreset,
    PromptCompletionSFTPreprocessingConfig,
)
from mb_data.libraries import load_dataset
from mb_schema.files import replaced


def with_files(config: FinetuningDatasetConfig, *, rewrite: bool = False) -> FinetuningDatasetConfig:
    """Return the section with the folder of its rows; the section itself if it names a folder.

    The files are written once for the same rows, by one process of a machine at a time. Not collective.

    Args:
        config: The section; not modified.
        rewrite: Write the files again although they exist.

    Raises:
        DataPathError: A dataset cannot be read, or a row lacks a column.
        FormatLibraryError: The library datasets is not installed.
    """
    if config.hf_dataset is None:
        return config
    sources, share = _sources(config, config.hf_dataset), config.hf_validation_proportion
    form = None if config.preprocessing is None else asdict(config.preprocessing)
    described = [
        {split: _described(source) for split, source in sources.items()},
        form,
        *([share] if share else []),
    ]
    name = f"hub-{hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]}"
    root = config.hf_output_root
    folder = (Path(root).expanduser() if root else resolve_cache_dir(config.cache_dir)) / name
    folder.mkdir(parents=True, exist_ok=True)
    with one_builder(folder):
        for split, source in sources.items():
            file = folder / f"{split}.jsonl"
            if file.exists() and not rewrite:
                continue
            with replaced(file) as part, part.open("w", encoding="utf-8") as stream:
                rows = _rows(split, source, config)
                stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return replace(config, dataset_root=str(folder), hf_dataset=None)


def _sources(
    config: FinetuningDatasetConfig, train: HFDatasetSourceConfig
) -> dict[str, HFDatasetSourceConfig]:
    """Return the origin of the rows of each split; of a proportion, that of training and validation is the same."""
    sources = {"training": train}
    if config.do_validation:
        is_part = config.hf_validation_proportion is not None
        own = train if is_part else replace(train, split="validation")
        sources["validation"] = config.hf_validation_dataset or own
    if config.do_test:
        sources["test"] = config.hf_test_dataset or replace(train, split="test")
    return sources


def _described(source: HFDatasetSourceConfig) -> dict[str, Any]:
    """Return what the name of a folder depends on; the adapter only if it is set, as older folders have no adapter."""
    values = asdict(source)
    return {name: value for name, value in values.items() if name != "schema_adapter" or value}


def _preset(source: HFDatasetSourceConfig) -> HubPreset:
    name = source.dataset_name or source.schema_adapter
    if name and name not in PRESETS:  # the rules check that of training
        raise DataPathError(f"dataset.hf_dataset: {name!r} is not one of {', '.join(PRESETS)}. Correct it.")
    form = PRESETS[name] if name else HubPreset(path="")
    if source.dataset_name:
        return form
    return replace(form, path=source.path_or_dataset or "", subset=None, split="train")


def _rows(
    split: str, source: HFDatasetSourceConfig, config: FinetuningDatasetConfig
) -> Iterator[Mapping[str, Any]]:
    preset = _preset(source)
    for row in _load(source, preset, _part(split, config)):
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
                f"name {source.dataset_name or source.schema_adapter!r} is for rows with {preset.prompt!r} and "
                f"{preset.completion!r}. Name another dataset by path_or_dataset, with its columns in "
                "dataset.preprocessing."
            ) from error
        texts = [text.strip(" ") for text in pair] if form is None or form.strip_whitespace else pair
        yield dict(zip(columns, texts, strict=True))


def _answer(row: Any, column: str) -> str:
    for name in column.split("."):
        row = row[name]
    return str(row[0] if isinstance(row, list) else row)


def _part(split: str, config: FinetuningDatasetConfig) -> tuple[float, float]:
    """Return the interval of the rows that a split has: a validation proportion takes the first ones of training."""
    share = config.hf_validation_proportion if config.do_validation and split != "test" else None
    if share is None:
        return 0.0, 1.0
    return (0.0, share) if split == "validation" else (share, 1.0)


def _load(source: HFDatasetSourceConfig, preset: HubPreset, part: tuple[float, float]) -> Any:
    rows = load_dataset(
        preset.path,
        source.subset or preset.subset,
        advice="Correct it, download it where there is a network, or set dataset.dataset_root to a folder.",
        split=source.split or preset.split,
        **(source.load_kwargs or {}),
    )
    if part == (0.0, 1.0):
        return rows
    return islice(rows, *(round(edge * len(rows)) for edge in part))
