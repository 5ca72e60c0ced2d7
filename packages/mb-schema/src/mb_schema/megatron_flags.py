"""Flags of Megatron-LM, read from a table that is recorded from its argument parser. Standard library only."""

import argparse
import difflib
from ast import Add, BinOp, Constant, List, Mult, Tuple, parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

TYPES: Mapping[str, Any] = {"int": int, "float": float, "str": str}
"""Types of values; text for any other type, whose conversion interprets it."""
WITH_BLANKS = "--step-batch-size-schedule"
"""Flag whose value may contain blanks, at which a script splits it unless it quotes the list with the value."""
MAX_ITEMS = 1 << 20
"""Items of the longest list in an expression, such as "[1]*8"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFlag:
    """One argument of Megatron-LM: several flags that set the same value count as one."""

    options: Mapping[str, str]
    """Flag to its kind: "value", "true" or "false" (the flag takes no value and sets this one)."""
    type: str = "str"
    nargs: str | None = None
    """`nargs` of argparse; None for one value."""
    choices: tuple[str, ...] = ()
    default: Any = None


AnyFlag = TypeVar("AnyFlag", bound=MegatronFlag)


class FlagTable(Generic[AnyFlag]):
    """Arguments of Megatron-LM, and the parser of their flags.

    Args:
        flags: Name of a value in Megatron-LM to its flags.
    """

    def __init__(self, flags: Mapping[str, AnyFlag]) -> None:
        self.flags = flags
        self.by_option: Mapping[str, AnyFlag] = {
            option: flag for flag in flags.values() for option in flag.options
        }

    def knows(self, word: str) -> bool:
        """Return whether a word is a flag, or one with its value after "="."""
        return word.partition("=")[0] in self.by_option

    def hint(self, name: str) -> str:
        """Return a question that names flags similar to an unknown one, after a blank; empty if there is none."""
        near = difflib.get_close_matches(name, [*self.by_option], n=2, cutoff=0.8)
        return f" Did you mean {' or '.join(near)}?" if near else ""

    def parse(
        self, words: Sequence[str], *, error: Callable[[str], Exception]
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the name and value of each argument that is given, and the words that belong to none.

        Args:
            words: Flags and their values.
            error: Makes the exception that is raised for a value that is missing or invalid.
        """
        parser = _Parser(error)
        for name, flag in self.flags.items():
            for option, kind in flag.options.items():
                if kind != "value":
                    parser.add_argument(option, dest=name, action=f"store_{kind}")
                    continue
                parser.add_argument(
                    option,
                    dest=name,
                    type=TYPES.get(flag.type, str),
                    nargs=flag.nargs,
                    choices=flag.choices or None,
                )
        values, unexpected = parser.parse_known_args(_with_joined_blanks(words))
        return vars(values), unexpected


class _Parser(argparse.ArgumentParser):
    def __init__(self, error: Callable[[str], Exception]) -> None:
        super().__init__(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
        self._error = error

    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process."""
        raise self._error(message)


def _with_joined_blanks(words: Sequence[str]) -> list[str]:
    """Return the words with the value of `WITH_BLANKS` as one word."""
    joined: list[str] = []
    for word in words:
        if len(joined) > 1 and joined[-2] == WITH_BLANKS and not word.startswith("--"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def evaluate(text: str, *, number: type | tuple[type, ...] = (int, float)) -> Any:
    """Return the value of a number, a list, or a sum or product of lists and numbers, such as "([0]*3+[1])*8".

    Args:
        text: The expression.
        number: Types of numbers.

    Raises:
        ValueError: The text is anything else, or the list would be too long.
    """
    try:
        return _value(parse(text, mode="eval").body, number)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not a value: {error}") from error


def _value(node: Any, number: type | tuple[type, ...]) -> Any:
    if isinstance(node, Constant) and isinstance(node.value, number):
        return node.value
    if isinstance(node, List | Tuple):
        return [_value(item, number) for item in node.elts]
    if isinstance(node, BinOp) and isinstance(node.op, Add):
        return _value(node.left, number) + _value(node.right, number)
    if isinstance(node, BinOp) and isinstance(node.op, Mult):
        return _product(_value(node.left, number), _value(node.right, number))
    raise ValueError(f"{type(node).__name__} is not a value")


def _product(left: Any, right: Any) -> Any:
    lists = [side for side in (left, right) if isinstance(side, list)]
    times = [side for side in (left, right) if isinstance(side, int)]
    if lists and times and len(lists[0]) * times[0] > MAX_ITEMS:
        raise ValueError("the list is too long")
    return left * right
