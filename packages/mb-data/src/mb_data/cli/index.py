"""Command `index`: what a run needs before its first step."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

import mb_data
from mb_data.cli.progress import print_result, progress_bar
from mb_data.data_checks import verify_dataset_files
from mb_data.errors import SectionFileError
from mb_data.megatron.sample_indices import IndexRequest, build_sample_indices
from mb_data.run_settings import run_sample_counts, validation_set_options
from mb_data.tokenizers.config import TokenizerConfig
from mb_schema.value_types import fit
from mb_schema.yaml_settings import load_settings

_SECTIONS = ("dataset", "tokenizer", "train", "validation")
_TARGETS = frozenset(name for name in mb_data._HOMES if name.endswith("Config"))


def index(request: IndexRequest, *, workers: int, as_json: bool) -> None:
    """Build the corpus and the sample indices that a run needs before its first step, and print their sizes.

    Raises:
        The errors of `build_sample_indices`.
    """
    with warnings.catch_warnings(), progress_bar("index") as report:
        warnings.filterwarnings("ignore", module=r"megatron\.")  # of kernels that datasets do not use
        warnings.filterwarnings("ignore", category=SyntaxWarning)  # in Megatron's docstrings
        sizes = asdict(build_sample_indices(request, workers=workers, progress=report))
    lines = [f"{request.name}: {', '.join(f'{split} {size:,} samples' for split, size in sizes.items())}"]
    lines.append("A run with the same data, steps and batch sizes finds all of it.")
    print_result({"samples": sizes}, as_json=as_json, lines=lines)


def read_request(files: Sequence[Path]) -> IndexRequest:
    """Read sections `dataset` and `tokenizer`, and sizes of `train` and `validation`, from YAML files.

    Later files replace fields of earlier ones. Other sections are ignored, so that the files of a trainer can be read.

    Raises:
        SectionFileError: There is no file, no dataset or no number of steps, there are arguments of a trainer, a file
            cannot be read, or a section has unknown fields or values of a wrong type.
        ConfigError: The dataset section violates rules.
        The errors of `verify_dataset_files`.
    """
    other_files = [str(file) for file in files if file.suffix not in (".yaml", ".yml")]
    if other_files or not files:
        raise SectionFileError(
            f"settings: only YAML files can be read here (arguments: {' '.join(other_files) or 'none'}). Recipes and "
            "overrides belong to a trainer. Pass FILE with dataset, tokenizer, train and validation."
        )
    merged = _merge(files)
    origin = ", ".join(map(str, files))
    try:
        request = _request(merged, name=files[-1].stem)
        request.section.finalize()
    except TypeError as error:
        message = str(error)
        fix = "" if message.endswith(".") else ". Correct the field."
        raise SectionFileError(f"{origin}: {message}{fix}") from error
    verify_dataset_files(request.section, evaluated=bool(merged["validation"].get("eval_iters")))
    return request


def _merge(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the sections of all files; fields of later files replace those of earlier ones."""
    merged: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for file in files:
        for name, section in _read(file).items():
            if name in merged and isinstance(section, Mapping):
                merged[name] |= section
    return merged


def _request(merged: dict[str, dict[str, Any]], *, name: str) -> IndexRequest:
    """Return the request that the sections describe.

    Raises:
        SectionFileError: There is no dataset, or the number of samples is not known.
        TypeError: A section has an unknown field, or a number is not one.
    """
    section, tokenizer = _dataset(merged["dataset"]), TokenizerConfig(**merged["tokenizer"])
    train = _sizes(merged, "train", "train_iters train_samples global_batch_size")
    validation = _sizes(merged, "validation", "eval_interval eval_iters eval_global_batch_size")
    for name_of_switch in ("full_validation", "multiple_validation_sets", "skip_train"):
        setattr(validation, name_of_switch, bool(merged["validation"].get(name_of_switch)))
    validation.validation_set_names = merged["validation"].get("validation_set_names")
    if merged["train"].get("step_batch_size_schedule") is not None:
        raise SectionFileError(
            "train.step_batch_size_schedule: is set, but the number of samples follows from its batch sizes, which "
            "this program does not read. Use `mb data index`, or set train.train_samples in its place."
        )
    if train.global_batch_size is None or (train.train_iters is None and train.train_samples is None):
        raise SectionFileError(
            f"train: has {', '.join(merged['train']) or 'no fields'}, but the number of samples depends on "
            "global_batch_size, and on train_iters or train_samples. Set them."
        )
    return IndexRequest(
        name=name,
        section=section,
        tokenizer=tokenizer,
        counts=run_sample_counts(train, validation),
        validation=validation_set_options(validation),
    )


def _sizes(merged: Mapping[str, Mapping[str, Any]], section: str, names: str) -> Any:
    """Return numbers of a section by their names, as attributes; None for those that are not set."""
    values = {
        name: fit(merged[section].get(name), int | None, path=f"{section}.{name}") for name in names.split()
    }
    return SimpleNamespace(**values)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        sections = load_settings(file.read_text(encoding="utf-8"), yaml)
    except FileNotFoundError as error:
        raise SectionFileError(
            f"{file}: no such file, but it is passed as --config. Correct the path."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SectionFileError(f"{file}: is not a YAML file ({error}). Correct it.") from error
    if not isinstance(sections, Mapping):
        raise SectionFileError(f"{file}: is not a mapping of sections. Write `dataset:` and its fields.")
    return sections


def _dataset(values: dict[str, Any]) -> Any:
    """Return the dataset section that `_target_` names."""
    target = values.pop("_target_", None)
    name = str(target).rpartition(".")[2]
    if name not in _TARGETS:
        raise SectionFileError(
            f"dataset._target_: {target!r} is not a section of mb-data, so the kind of data is not known. Set it, for "
            "example to mb_data.config.GPTDatasetConfig."
        )
    return getattr(mb_data, name)(**values)
