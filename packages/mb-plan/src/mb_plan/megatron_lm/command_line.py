"""Flags of a Megatron-LM command line and their values. A flag that a plan cannot take into account is an error."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NoReturn

from mb_plan.errors import ModelFileError

Use = Literal["used", "not_distinguished", "no_effect", "not_planned"]
"""What a plan does with a flag: it reads it; it does not distinguish runs with and without it, and names it in a note;
it has no effect on memory or on the time of a step; or it has one that is not planned, so that it is an error."""
PROGRAMS = re.compile(r"pretrain_(gpt|mamba|hybrid|t5)\.py")
TYPES: Mapping[str, Any] = {"int": int, "float": float, "str": str}
"""Types of values; text for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One argument of Megatron-LM: several flags that set the same value count as one."""

    use: Use
    options: Mapping[str, str]
    """Flag to its kind: "value", "true" or "false" (the flag takes no value and sets this one)."""
    type: str = "str"
    nargs: str | None = None
    """`nargs` of argparse; None for one value."""
    choices: tuple[str, ...] = ()
    default: Any = None


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
        return self.given[dest] if dest in self.given else read_flags()[dest].default


@cache
def read_flags() -> Mapping[str, Flag]:
    """Return the arguments of Megatron-LM by name."""
    table = json.loads(files("mb_plan.megatron_lm").joinpath("flags.json").read_text(encoding="utf-8"))
    return {
        dest: Flag(use=use, **{**row, "choices": tuple(row.get("choices", ()))})
        for use, rows in table.items()
        for dest, row in rows.items()
    }


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
    values, unexpected = _parser().parse_known_args(_with_joined_blanks(flags))
    if unexpected:
        raise ModelFileError(
            f"unexpected words: {shlex.join(unexpected)}. Each value belongs to the flag before it. Take them out."
        )
    given = vars(values)
    table = read_flags()
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
    if at is None or any(_is_known(word) for word in words[:at]):
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


def _is_known(word: str) -> bool:
    return word.partition("=")[0] in _by_option()


@cache
def _by_option() -> Mapping[str, Flag]:
    return {option: flag for flag in read_flags().values() for option in flag.options}


def _reject_flags(words: Sequence[str]) -> None:
    """Raise for all flags that are unknown, or have an effect that is not planned."""
    names = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
    reasons = [reason for name in names if (reason := _reason(name)) is not None]
    if reasons:
        raise ModelFileError(
            "\n".join([*reasons, "Take these flags out of the line to plan the run without them."])
        )


def _reason(name: str) -> str | None:
    flag = _by_option().get(name)
    if flag is None:
        near = difflib.get_close_matches(name, [*_by_option()], n=2, cutoff=0.8)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"{name}: is no flag of Megatron-LM 0.19.{hint}"
    if flag.use == "not_planned":
        return f"{name}: has an effect on the model, its memory or its time that is not planned."
    return None


def _with_joined_blanks(words: Sequence[str]) -> list[str]:
    """Return the words with the value of `--step-batch-size-schedule`, which may contain blanks, as one word."""
    joined: list[str] = []
    for word in words:
        if len(joined) > 1 and joined[-2] == "--step-batch-size-schedule" and not word.startswith("--"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process."""
        raise ModelFileError(f"{message}. Correct the command line.")


@cache
def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for dest, flag in read_flags().items():
        for option, kind in flag.options.items():
            if kind != "value":
                parser.add_argument(option, dest=dest, action=f"store_{kind}")
                continue
            parser.add_argument(
                option,
                dest=dest,
                type=TYPES.get(flag.type, str),
                nargs=flag.nargs,
                choices=flag.choices or None,
            )
    return parser
