"""Flags of a Megatron-LM command line and their values. A flag that a plan cannot take into account is an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from mb_plan.errors import ModelFileError
from mb_schema.megatron_flags import FlagTable, MegatronFlag

Use = Literal["used", "not_distinguished", "no_effect", "not_planned"]
"""What a plan does with a flag: it reads it; it does not distinguish runs with and without it, and names it in a note;
it has no effect on memory or on the time of a step; or it has one that is not planned, so that it is an error."""
PROGRAMS = re.compile(r"pretrain_(gpt|mamba|hybrid|t5)\.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFlag(MegatronFlag):
    """One argument of Megatron-LM, and what a plan does with it."""

    use: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Arguments of a command line."""

    program: str
    """File name of the program; empty: the line has only flags."""
    given: Mapping[str, Any]
    """Name of each used argument that is given, to its value."""
    notes: tuple[str, ...]
    """What the plan does not distinguish, as text for users."""

    def __getitem__(self, dest: str) -> Any:
        """Return the value of an argument: the given one, or the default of Megatron-LM."""
        return self.given[dest] if dest in self.given else flag_table().flags[dest].default


@cache
def flag_table() -> FlagTable[PlannedFlag]:
    """Return the arguments of Megatron-LM."""
    table = json.loads(files("mb_plan.megatron_lm").joinpath("flags.json").read_text(encoding="utf-8"))
    return FlagTable(
        {
            dest: PlannedFlag(use=use, **{**row, "choices": tuple(row.get("choices", ()))})
            for use, rows in table.items()
            for dest, row in rows.items()
        }
    )


def is_command_line(text: str) -> bool:
    """Return whether a text is a command line rather than the path of a file."""
    return re.search(r"(^|\s)--\w", text) is not None


def parse_command_line(line: str | Sequence[str]) -> CommandLine:
    """Return the arguments of a command line.

    Args:
        line: Text, or its words: a launcher, a program and flags, or flags alone.

    Raises:
        ModelFileError: The program trains another model, or flags are unknown, not planned, or lack a value. The
            message names all of these flags.
    """
    launcher, program, flags = _split(_words(line))
    _reject_flags(flags)
    given, unexpected = flag_table().parse(flags, error=_wrong_value)
    if unexpected:
        raise ModelFileError(
            f"unexpected words: {shlex.join(unexpected)}. Each value belongs to the flag before it. Take them out."
        )
    table = flag_table().flags
    blind = sorted(
        next(iter(table[dest].options)) for dest in given if table[dest].use == "not_distinguished"
    )
    notes = (
        [f"not distinguished, but as in the published runs on average: {', '.join(blind)}"] if blind else []
    )
    return CommandLine(
        program=program,
        given={dest: value for dest, value in given.items() if table[dest].use == "used"},
        notes=(*notes, *_launcher_notes(launcher)),
    )


def _words(line: str | Sequence[str]) -> list[str]:
    if not isinstance(line, str):
        return [*line]
    try:
        return shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise ModelFileError(
            f"the command line is incomplete ({error}). Close the quotation marks."
        ) from error


def _split(words: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """Return the words of the launcher, the program, and the flags of Megatron-LM."""
    at = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if at is None or any(flag_table().knows(word) for word in words[:at]):
        if words and not words[0].startswith("--"):
            raise ModelFileError(
                f"{words[0]}: is neither a flag of Megatron-LM nor followed by a program such as pretrain_gpt.py. "
                "Write the complete command line, or only its flags."
            )
        return (), "", words
    program = words[at].rpartition("/")[2]
    if not PROGRAMS.fullmatch(program):
        raise ModelFileError(
            f"{words[at]}: only pretrain_gpt.py, pretrain_mamba.py, pretrain_hybrid.py and pretrain_t5.py are planned. "
            "Take the program out of the line if it trains such a model."
        )
    return words[:at], program, words[at + 1 :]


def _launcher_notes(words: Sequence[str]) -> list[str]:
    text = shlex.join(words)
    return [f"the number of processes is that of --gpus, not that of the launcher ({text})"] if text else []


def _reject_flags(words: Sequence[str]) -> None:
    """Raise for all flags that are unknown, or have an effect that is not planned."""
    names = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
    reasons = [reason for name in names if (reason := _reason(name)) is not None]
    if reasons:
        raise ModelFileError(
            "\n".join([*reasons, "Take these flags out of the line to plan the run without them."])
        )


def _reason(name: str) -> str | None:
    flag = flag_table().by_option.get(name)
    if flag is None:
        return f"{name}: is no flag of Megatron-LM 0.19.{flag_table().hint(name)}"
    if flag.use == "not_planned":
        return f"{name}: has an effect on the model, its memory or its time that is not planned."
    return None


def _wrong_value(message: str) -> ModelFileError:
    return ModelFileError(f"{message}. Correct the command line.")
