"""Configuration of a Megatron-LM run in progress, from its checkpoint and the script that started it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mb_checkpoint.trainer_api
from mb_checkpoint import CheckpointConfig
from mb_config import ConfigReadError, MegatronConversion, from_megatron_args
from mb_config.trainer_api import (
    assigned_variables,
    convert_script,
    differences,
    omissions,
    read_source,
    read_yaml,
    render,
)
from mb_schema.files import write_atomically

REPLACED = ("checkpoint.save", "checkpoint.load", "checkpoint.ckpt_step", "logger.tensorboard_dir")
"""Fields that are those of the new run, so that the folder of the old one is not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRun:
    """A run of Megatron-LM as a request of this trainer."""

    arguments: tuple[str, ...]
    """Recipe and overrides of `mb pretrain`."""
    out: Path
    """Run folder."""
    lines: tuple[str, ...]
    """What was taken from where, and what differs."""


def take_over(
    folder: Path,
    *,
    script: Path | None,
    variables: Sequence[str] = (),
    ignore_unknown: bool = False,
    out: Path | None = None,
    overrides: Sequence[str] = (),
) -> MegatronRun:
    """Write the configuration of a run of Megatron-LM into a new run folder, and return the request that resumes it.

    The script determines the settings; without one, the arguments in the checkpoint do. The same call resumes the new
    run, also after it has saved into the folder of Megatron-LM.

    Args:
        folder: Folder with its checkpoints, `--save` of Megatron-LM.
        script: Script that started it.
        variables: Values of variables of the script, `NAME=VALUE`.
        ignore_unknown: Leave out flags of custom code.
        out: Run folder; None: `runs/<name of the folder>`.
        overrides: Settings of the user, which take precedence.

    Raises:
        ConfigReadError: The script cannot be converted, neither script nor checkpoint has arguments, the model is
            a T5, or the run folder belongs to another run.
        CheckpointError: There is no checkpoint, or it cannot be read.
    """
    # imports torch, which no other start of a command does
    stored = mb_checkpoint.trainer_api.find_stored_settings(CheckpointConfig(load=str(folder)))
    chosen = out or Path("runs") / folder.resolve().name
    file = chosen / "megatron_lm.yaml"
    before = _taken_over(file)
    if before not in (None, folder.resolve()):
        raise ConfigReadError(
            f"--from-megatron-lm: {chosen} is the run that has taken over {before}, not {folder}. Choose another run "
            "folder with --out."
        )
    if stored.run_config is not None and before is None:
        raise ConfigReadError(
            f"--from-megatron-lm: {folder} is a run of this trainer or of Megatron-Bridge, with {stored.run_config}. "
            f"Pass checkpoint.load={folder} instead."
        )
    lines = [f"weights, optimizer and position: {stored.path}, until {chosen} has a checkpoint of its own"]
    if script is None and stored.arguments is None:
        return MegatronRun(arguments=(str(file),), out=chosen, lines=(*lines, f"settings: {file}"))
    source, conversion, notes = _settings(
        stored.arguments or {}, script, assigned_variables(variables), ignore_unknown
    )
    if conversion.given.get("model._target_") == "T5ModelConfig":
        raise ConfigReadError(
            f"--from-megatron-lm: {folder} is the run of a T5, which cannot be resumed. Megatron-LM masks word pieces "
            "of a BERT tokenizer, and T5DatasetConfig replaces spans of the tokens of other tokenizers, so that "
            "weights and position would belong to other data. Start a new run: convert the script with mb config "
            "import-args, and set tokenizer and dataset."
        )
    given = {path: value for path, value in conversion.given.items() if path not in REPLACED}
    given["checkpoint.load"] = str(folder.resolve())
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render(replace(conversion, given=given), source=source))
    overridden = {word.lstrip("+~").partition("=")[0].partition(".")[0] for word in overrides}
    return MegatronRun(
        arguments=(str(file),),
        out=chosen,
        lines=(
            *lines,
            f"settings: {source}, written to {file}",
            *([] if "tokenizer" in overridden else [_tokenizer(given)]),
            *([] if "dataset" in overridden else [_data(given)]),
            *notes,
            *(
                []
                if "checkpoint" in overridden
                else [f"checkpoints of this run: {chosen / 'checkpoints'}; {folder} is not changed"]
            ),
        ),
    )


def _taken_over(file: Path) -> Path | None:
    """Return the folder that the run of this file has taken over; None if there is no such file."""
    return Path(read_yaml(file).data["checkpoint"]["load"]) if file.is_file() else None


def _settings(
    stored: Mapping[str, Any], script: Path | None, variables: Mapping[str, str], ignore_unknown: bool
) -> tuple[str, MegatronConversion, list[str]]:
    """Return the source of the settings, the settings, and lines on what is not among them or differs."""
    if script is None:
        conversion = from_megatron_args(stored, ignore_unknown=True)
        unknown = [f"left out: {', '.join(conversion.left_out)}"] if conversion.left_out else []
        return "the arguments in the checkpoint", conversion, unknown
    _, words = read_source([str(script)], variables)
    conversion = convert_script(words, ignore_unknown=ignore_unknown)
    different = differences(conversion, stored, name=script.name, without=REPLACED) if stored else ()
    return (
        str(script),
        conversion,
        [*omissions(conversion, words), *(f"differs: {line}" for line in different)],
    )


def _tokenizer(given: Mapping[str, Any]) -> str:
    kind, file = given.get("tokenizer.tokenizer_type"), given.get("tokenizer.tokenizer_model")
    return f"tokenizer: {' '.join(str(part) for part in (kind or 'that of the dataset', file) if part)}"


def _data(given: Mapping[str, Any]) -> str:
    """Return the line on the data. The run checks that they exist."""
    data_paths = given.get("dataset.blend") or given.get("dataset.blend_per_split")
    if data_paths is None:
        return "data: generated"
    blends = (
        [data_paths]
        if isinstance(data_paths[0], list) and data_paths[0] and isinstance(data_paths[0][0], str)
        else data_paths
    )
    return f"data: {' '.join(prefix for blend in blends if blend for prefix in blend[0])}"
