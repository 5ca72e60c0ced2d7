"""Flags of Megatron-LM: names, types and defaults, and the field of this project that each of them sets.

flags.json is recorded from the argument parser of the installed megatron.training; a test compares the two.
"""

import argparse
import difflib
import json
from ast import Add, BinOp, Constant, List, Mult, Tuple, parse
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
    table = json.loads(files("mb_config.megatron_lm").joinpath("flags.json").read_text(encoding="utf-8"))
    return {
        dest: Flag(dest=dest, **{**row, "choices": tuple(row.get("choices", ()))})
        for dest, row in table.items()
    }


WITH_BLANKS = ("step_batch_size_schedule",)
"""Arguments whose value contains blanks, at which a script splits it unless it quotes the list with the value."""


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return dest -> value for the flags in the words.

    Raises:
        MegatronFlagError: A flag is unknown, lacks its value, or has an invalid one. The message names all unknown
            flags with similar names.
    """
    unknown = [word for word in words if word.startswith("--") and not _is_known(word)]
    if unknown:
        names = dict.fromkeys(word.partition("=")[0] for word in unknown)
        raise MegatronFlagError(
            "\n".join(
                [
                    *(_unknown_flag(name) for name in names),
                    "Flags of custom code are left out by --ignore-unknown.",
                ]
            )
        )
    given, unexpected = _parser().parse_known_args(_with_joined_blanks(words))
    if unexpected:
        raise MegatronFlagError(
            f"unexpected words: {' '.join(unexpected)}. Each value belongs to the flag before it. A script that holds "
            'the value in a list quotes it: "${NAME[@]}".'
        )
    return vars(given)


def without_flags(
    words: Sequence[str], names: Sequence[str] = (), *, unknown: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return the words without some flags and their values, and each of these flags with its values.

    Args:
        words: Flags and their values.
        names: Flags to leave out.
        unknown: Leave out all flags that Megatron-LM does not know as well.

    Raises:
        MegatronFlagError: One of `names` is not among the words.
    """
    kept: list[str] = []
    left_out: list[list[str]] = []
    leaves = False
    for word in words:
        if word.startswith("--"):
            leaves = word.partition("=")[0] in names or (unknown and not _is_known(word))
            left_out += [[]] if leaves else []
        (left_out[-1] if leaves else kept).append(word)
    missing = sorted({*names} - {flag[0].partition("=")[0] for flag in left_out})
    if missing:
        raise MegatronFlagError(f"--custom-flag {missing[0]}: is not among the arguments. Leave it out.")
    return kept, left_out


@cache
def flags_by_option() -> Mapping[str, Flag]:
    """Return the flags by each of their options."""
    return {option: flag for flag in read_flags().values() for option in flag.options}


def _is_known(word: str) -> bool:
    return word.partition("=")[0] in flags_by_option()


def _with_joined_blanks(words: Sequence[str]) -> list[str]:
    joined: list[str] = []
    options = [option for dest in WITH_BLANKS for option in read_flags()[dest].options]
    for word in words:
        if len(joined) > 1 and joined[-2] in options and not word.startswith("--"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


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


_FORMER = {
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--distribute-checkpointed-activations": "--distribute-saved-activations",
}
"""Flag of earlier releases -> its present name."""


def _unknown_flag(name: str) -> str:
    if name in _FORMER:
        return f"{name}: is {_FORMER[name]} in Megatron-LM today. Rename it, or leave it out with --custom-flag={name}."
    near = difflib.get_close_matches(name, [*flags_by_option()], n=2, cutoff=0.8)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{name}: unknown flag of Megatron-LM.{hint} --custom-flag={name} leaves it out."


def option_of(dest: str) -> str:
    """Return the first option of an argument, such as `--seq-length`."""
    return next(iter(read_flags()[dest].options))


class Arguments:
    """Values of all arguments, of which some were given."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def __getitem__(self, dest: str) -> Any:
        """Return the value of an argument: the given one, or the default of Megatron-LM."""
        return self.given[dest] if dest in self.given else read_flags()[dest].default

    def uses(self, dest: str | None) -> bool:
        """Return whether an argument is on; True for None."""
        return dest is None or bool(self[dest])


def parse_value(value: Any) -> Any:
    """Return the value of a text such as "2", "([0]*3+[1])*2" or "true"; other texts and values as they are."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return _evaluate(parse(value, mode="eval").body)
    except (ValueError, SyntaxError, TypeError):
        return value


def _evaluate(node: Any) -> Any:
    """Return the value of a number, a list, or a sum or product of lists and numbers."""
    if isinstance(node, Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, List | Tuple):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, BinOp) and isinstance(node.op, Add):
        return _evaluate(node.left) + _evaluate(node.right)
    if isinstance(node, BinOp) and isinstance(node.op, Mult):
        return _evaluate(node.left) * _evaluate(node.right)
    raise ValueError(f"{type(node).__name__} is not a value")
