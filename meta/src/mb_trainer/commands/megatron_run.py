"""Configuration of a Megatron-LM run in progress, from its checkpoint and the script that started it."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mb_checkpoint.trainer_api
from mb_checkpoint import CheckpointConfig
from mb_config import ConfigReadError, MegatronConversion, from_megatron_args
from mb_config.trainer_api import (
    ScriptWords,
    assigned_variables,
    convert_script,
    omissions,
    option_of,
    parse_flags,
    read_source,
    render,
    without_flags,
)

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
) -> MegatronRun:
    """Write the configuration of a run of Megatron-LM into a new run folder, and return the request that resumes it.

    The script determines the settings; without one, the arguments in the checkpoint do.

    Args:
        folder: Folder with its checkpoints, `--save` of Megatron-LM.
        script: Script that started it.
        variables: Values of variables of the script, `NAME=VALUE`.
        ignore_unknown: Leave out flags of custom code.
        out: Run folder; None: `runs/<name of the folder>`.

    Raises:
        ConfigReadError: The script cannot be converted, or neither script nor checkpoint has arguments.
        CheckpointError: There is no checkpoint, or it cannot be read.
    """
    # imports torch, which no other start of a command does
    stored = mb_checkpoint.trainer_api.find_stored_settings(CheckpointConfig(load=str(folder)))
    if stored.run_config is not None:
        raise ConfigReadError(
            f"--from-megatron-lm: {folder} is a run of this trainer or of Megatron-Bridge, with {stored.run_config}. "
            f"Pass checkpoint.load={folder} instead."
        )
    arguments = stored.arguments or {}
    source, conversion, lines = _settings(arguments, script, assigned_variables(variables), ignore_unknown)
    chosen = out or Path("runs") / folder.resolve().name
    file = chosen / "megatron_lm.yaml"
    given = {path: value for path, value in conversion.given.items() if path not in REPLACED}
    write(
        file,
        render(
            MegatronConversion(given=given, defaults=conversion.defaults, variables=conversion.variables),
            source=source,
        ),
    )
    return MegatronRun(
        arguments=(str(file), f"checkpoint.load={folder}"),
        out=chosen,
        lines=(
            f"weights, optimizer and position: {stored.path}",
            f"settings: {source}, written to {file}",
            *_inputs(given),
            *lines,
            f"checkpoints of this run: {chosen / 'checkpoints'}; {folder} is not changed",
        ),
    )


def _settings(
    stored: Mapping[str, Any], script: Path | None, variables: Mapping[str, str], ignore_unknown: bool
) -> tuple[str, MegatronConversion, list[str]]:
    """Return the source of the settings, the settings, and lines on what is not among them or differs."""
    if script is None:
        conversion = from_megatron_args(stored, ignore_unknown=True)
        left_out = [f"left out: {name}" for name in conversion.left_out]
        return "the arguments in the checkpoint", conversion, left_out
    _, words = read_source([str(script)], variables)
    conversion = convert_script(words, ignore_unknown=ignore_unknown)
    return str(script), conversion, [*omissions(conversion, words), *differences(words, stored, script.name)]


def differences(words: ScriptWords, stored: Mapping[str, Any], script: str) -> Iterator[str]:
    """Yield the flags of a script whose values are not those in the checkpoint."""
    kept, _ = without_flags(words.words, unknown=True)
    for dest, value in parse_flags(kept).items():
        before = stored.get(dest)
        if before is not None and _text(before) != _text(value):
            yield f"differs: {option_of(dest)}: {_text(value)} in {script}, {_text(before)} in the checkpoint"


def _text(value: Any) -> str:
    return shlex.join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _inputs(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tokenizer and the data."""
    kind, file = given.get("tokenizer.tokenizer_type"), given.get("tokenizer.tokenizer_model")
    yield f"tokenizer: {' '.join(str(part) for part in (kind or 'that of the dataset', file) if part)}"
    blend = given.get("dataset.blend") or given.get("dataset.blend_per_split")
    yield f"data: {'generated' if blend is None else _blend(blend)}"


def _blend(blend: Sequence[Any]) -> str:
    parts = [blend] if isinstance(blend[0], list) and blend[0] and isinstance(blend[0][0], str) else blend
    return "; ".join(" ".join(part[0]) for part in parts if part)


def write(file: Path, text: str) -> None:
    """Write a file in one step: the processes of a run may write the same one at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    Path(name).replace(file)
