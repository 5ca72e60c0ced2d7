"""Executor of NeMo-Run as a user writes it: a kind, a YAML file, or a Python file. Requires PyYAML (extra `cli`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mb_launch.errors import ExecutorFileError
from mb_launch.secret_names import is_secret_variable
from mb_schema.yaml_settings import load_settings

KINDS = ("local", "slurm", "docker", "kubeflow", "skypilot", "skypilot_jobs", "dgxcloud", "lepton")
"""Kinds of executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRequest:
    """An executor before it is built: a kind with its fields, or a name in a Python file."""

    source: str
    """Text of the user, for messages."""
    kind: str | None = None
    fields: Mapping[str, Any]
    python_file: Path | None = None
    """File that defines `name`: an executor, or a function that returns one."""
    name: str = ""


def read_executor(text: str, settings: Sequence[str] = ()) -> ExecutorRequest:
    """Read what `--executor` and `--set` request.

    Args:
        text: A kind of `KINDS`, a YAML file whose key `executor` is one, or `FILE.py:NAME`.
        settings: `FIELD=VALUE`, values in YAML; they replace those of the file.

    Raises:
        ExecutorFileError: The file or a setting cannot be read, the kind is unknown, or a variable looks like a secret.
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        if settings:
            raise ExecutorFileError(f"--set: {settings[0]} has no effect on {text}. Change it in the file.")
        if not Path(path).is_file():
            raise ExecutorFileError(f"--executor: {path} is not a file. Write FILE.py:NAME.")
        return ExecutorRequest(source=text, fields={}, python_file=Path(path), name=name)
    fields = _read_file(Path(text)) if text.endswith((".yaml", ".yml")) else {"executor": text}
    for setting in settings:
        _set(fields, setting)
    kind = fields.pop("executor", None)
    if kind not in KINDS:
        raise ExecutorFileError(
            f"--executor: {text} has the kind {kind!r}, which is unknown. Known: {', '.join(KINDS)}; or write a "
            "FILE.yaml with such a key `executor`, or FILE.py:NAME."
        )
    _reject_secrets(text, fields.get("env_vars"))
    return ExecutorRequest(source=text, kind=kind, fields=fields)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = load_settings(file.read_text(encoding="utf-8"), yaml)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExecutorFileError(f"{file}: cannot be read ({' '.join(str(error).split())}).") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ExecutorFileError(
            f"{file}: is not a mapping of fields. Write executor: KIND, then FIELD: VALUE."
        )
    return content


def _set(fields: dict[str, Any], setting: str) -> None:
    """Set a field, of the executor or of a mapping in it, to the value of `FIELD=VALUE` or `FIELD.KEY=VALUE`.

    Raises:
        ExecutorFileError: The text has another form, or a name before the last is not a mapping.
    """
    name, equals, text = setting.partition("=")
    *parents, last = name.split(".")
    if not equals or not all((*parents, last)):
        raise ExecutorFileError(f"--set: {setting!r} is not a setting. Write FIELD=VALUE, such as nodes=2.")
    for parent in parents:
        fields = fields.setdefault(parent, {})
        if not isinstance(fields, dict):
            raise ExecutorFileError(f"--set: {name} is set, but {parent} is not a mapping. Correct the name.")
    try:
        fields[last] = load_settings(text, yaml)
    except yaml.YAMLError as error:
        raise ExecutorFileError(f"--set: {text!r} is not a value in YAML. Quote it.") from error


def _reject_secrets(text: str, variables: Any) -> None:
    if variables is not None and not isinstance(variables, dict):
        raise ExecutorFileError(f"{text}: env_vars is not a mapping. Write NAME: VALUE.")
    for name, value in (variables or {}).items():
        if is_secret_variable(str(name), str(value)):
            raise ExecutorFileError(
                f"{text}: env_vars.{name} looks like a secret, which NeMo-Run stores in plain text. The executors "
                "local and slurm pass the variables of this shell; for others, build it in FILE.py:NAME from "
                "os.environ, or use the secrets of the platform."
            )
