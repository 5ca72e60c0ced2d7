"""Command `index`: what a run needs before its first step."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import yaml

import mb_data
from mb_data.cli_progress import print_result, progress_bar
from mb_data.data_checks import verify_dataset_files
from mb_data.errors import SectionFileError
from mb_data.sample_counts import dataset_sample_counts
from mb_data.sample_indices import IndexRequest, build_sample_indices
from mb_data.tokenizer_config import TokenizerConfig
from mb_data.validation_sets import ValidationSetOptions

_SECTIONS = ("dataset", "tokenizer", "train", "validation")
_TARGETS = frozenset(name for name in mb_data._HOMES if name.endswith("Config"))


class IndexRequestReader(Protocol):
    """Reader of the settings of a run."""

    def __call__(
        self, settings: Sequence[str], *, files: Sequence[Path], world_size: int | None
    ) -> IndexRequest:
        """Return the settings on which sample indices depend.

        Args:
            settings: Positional arguments of the command.
            files: Files of its option `--config`.
            world_size: Its option `--world-size`.
        """


def index(request: IndexRequest, *, workers: int, as_json: bool) -> None:
    """Build the corpus and the sample indices that a run needs before its first step, and print their sizes.

    Raises:
        The errors of `build_sample_indices`.
    """
    with progress_bar("index") as report:
        sizes = asdict(build_sample_indices(request, workers=workers, progress=report))
    lines = [f"{request.name}: {', '.join(f'{split} {size:,} samples' for split, size in sizes.items())}"]
    lines.append("A run with the same data, steps and batch sizes finds all of it.")
    print_result({"samples": sizes}, as_json=as_json, lines=lines)


def read_request_from_files(
    settings: Sequence[str], *, files: Sequence[Path], world_size: int | None
) -> IndexRequest:
    """Read sections `dataset` and `tokenizer`, and sizes of `train` and `validation`, from YAML files.

    Later files replace fields of earlier ones. Other sections are ignored, so that the files of a trainer can be read.

    Raises:
        SectionFileError: There is no file or no dataset, there are arguments of a trainer, a file cannot be read, or a
            section has other fields.
        ConfigError: The dataset section violates rules.
        The errors of `verify_dataset_files`.
    """
    if settings or world_size is not None or not files:
        raise SectionFileError(
            f"index: needs files of settings (arguments: {' '.join(settings) or 'none'}). Recipes, overrides and "
            "--world-size are those of a trainer. Give --config FILE with sections dataset, tokenizer, train and "
            "validation."
        )
    merged: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for file in files:
        for name, section in _read(file).items():
            if name in merged and isinstance(section, Mapping):
                merged[name] |= section
    train, validation = merged["train"], merged["validation"]
    sets = ValidationSetOptions(
        complete=bool(validation.get("full_validation")),
        several=bool(validation.get("multiple_validation_sets")),
        names=validation.get("validation_set_names"),
    )
    origin = ", ".join(map(str, files))
    try:
        request = IndexRequest(
            name=files[-1].stem,
            section=_dataset(merged["dataset"]),
            tokenizer=TokenizerConfig(**merged["tokenizer"]),
            counts=dataset_sample_counts(
                train.get("train_iters") or 0,
                global_batch_size=train.get("global_batch_size") or 0,
                eval_interval=validation.get("eval_interval"),
                eval_iters=validation.get("eval_iters"),
                eval_global_batch_size=validation.get("eval_global_batch_size"),
                train_samples=train.get("train_samples"),
                validation_sets=sets.has_sets,
            ),
            validation=sets,
        )
    except TypeError as error:
        raise SectionFileError(f"{origin}: {error}. Correct the field.") from error
    request.section.finalize()
    verify_dataset_files(request.section, evaluated=bool(validation.get("eval_iters")))
    return request


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SectionFileError(f"{file}: no such file, but it is a --config. Correct the path.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SectionFileError(f"{file}: is no YAML file ({error}). Correct it.") from error
    if not isinstance(found, Mapping):
        raise SectionFileError(f"{file}: is no mapping of sections. Write `dataset:` and its fields.")
    return found


def _dataset(values: dict[str, Any]) -> Any:
    """Return the dataset section that `_target_` names."""
    target = values.pop("_target_", None)
    name = str(target).rpartition(".")[2]
    if name not in _TARGETS:
        raise SectionFileError(
            f"dataset._target_: {target!r} is no section of mb-data, so the kind of data is not known. Set it, for "
            "example to mb_data.config.GPTDatasetConfig."
        )
    return getattr(mb_data, name)(**values)
