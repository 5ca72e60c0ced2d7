"""Flags of Megatron-LM: names, types and defaults, and the field of this project that each of them sets.

flags.json is recorded from the argument parser of the installed megatron.training; a test compares the two.
"""

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from mb_config.errors import ConfigReadError

TYPES: Mapping[str, Any] = {"int": int, "float": float, "str": str}
"""Types of values; text for any other type, whose conversion interprets it."""


class MegatronFlagError(ConfigReadError):
    """Arguments that Megatron-LM would not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One argument of Megatron-LM: several flags that set the same value count as one."""

    dest: str
    """Name of the value in Megatron-LM."""
    group: str
    """Title of its group in Megatron-LM's help."""
    options: Mapping[str, str]
    """Flag -> kind: "value", "true" or "false" (the flag takes no value and sets this one)."""
    type: str = "str"
    nargs: str | None = None
    """`nargs` of argparse; None for one value."""
    choices: tuple[str, ...] = ()
    default: Any = None
    path: str = ""
    """Field of this project with the same meaning and values; empty if there is none."""
    write_default: bool = False
    """True if the field has another default, so that Megatron-LM's is written."""


@cache
def read_flags() -> Mapping[str, Flag]:
    """Return the flags by dest."""
    table = json.loads(files("mb_config.megatron_lm").joinpath("flags.json").read_text())
    return {
        dest: Flag(dest=dest, **{**row, "choices": tuple(row.get("choices", ()))})
        for dest, row in table.items()
    }


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return dest -> value for the flags in the words.

    Raises:
        MegatronFlagError: A flag is unknown, lacks its value, or has an invalid one. The message names all unknown
            flags with similar names.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args([*words])
    if unknown:
        raise MegatronFlagError(
            "\n".join(_unknown_flag(word) for word in unknown if word.startswith("-"))
            or f"unexpected words: {' '.join(unknown)}. Each value belongs to the flag before it."
        )
    return vars(given)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for flag in read_flags().values():
        for option, kind in flag.options.items():
            if kind == "value":
                parser.add_argument(
                    option,
                    dest=flag.dest,
                    type=TYPES.get(flag.type, str),
                    nargs=flag.nargs,
                    choices=flag.choices or None,
                )
            else:
                parser.add_argument(option, dest=flag.dest, action=f"store_{kind}")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process."""
        raise MegatronFlagError(message)


def _unknown_flag(word: str) -> str:
    name = word.partition("=")[0]
    options = [option for flag in read_flags().values() for option in flag.options]
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.8)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{name}: unknown flag of Megatron-LM.{hint} A flag of custom code is left out by --custom-flag={name}."


def option_of(dest: str) -> str:
    """Return the first option of an argument, such as `--seq-length`."""
    return next(iter(read_flags()[dest].options))
