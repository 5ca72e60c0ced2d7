"""Flags of Megatron-LM: names, types and defaults, and the field of this project that each of them sets.

flags.json is recorded from the argument parser of the installed megatron.training; a test compares the two.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mb_config.errors import ConfigReadError
from mb_schema.megatron_flags import FlagTable, MegatronFlag, evaluate


class MegatronFlagError(ConfigReadError):
    """Arguments that Megatron-LM would not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(MegatronFlag):
    """One argument of Megatron-LM, and the field of this project that it sets."""

    group: str
    """Title of its group in Megatron-LM's help."""
    path: str = ""
    """Field of this project with the same meaning and values; empty if there is none."""
    write_default: bool = False
    """True if the field has another default, so that Megatron-LM's is written."""


@cache
def flag_table() -> FlagTable[Flag]:
    """Return the arguments of Megatron-LM."""
    table = json.loads(files("mb_config.megatron_lm").joinpath("flags.json").read_text(encoding="utf-8"))
    return FlagTable(
        {dest: Flag(**{**row, "choices": tuple(row.get("choices", ()))}) for dest, row in table.items()}
    )


def read_flags() -> Mapping[str, Flag]:
    """Return the flags by the name of the value in Megatron-LM."""
    return flag_table().flags


def flags_by_option() -> Mapping[str, Flag]:
    """Return the flags by each of their options."""
    return flag_table().by_option


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return dest -> value for the flags in the words.

    Raises:
        MegatronFlagError: A flag is unknown, lacks its value, or has an invalid one. The message names all unknown
            flags with similar names.
    """
    unknown = [word for word in words if word.startswith("--") and not flag_table().knows(word)]
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
    given, unexpected = flag_table().parse(words, error=MegatronFlagError)
    if unexpected:
        raise MegatronFlagError(
            f"unexpected words: {' '.join(unexpected)}. Each value belongs to the flag before it. A script that holds "
            'the value in a list quotes it: "${NAME[@]}".'
        )
    return given


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
            leaves = word.partition("=")[0] in names or (unknown and not flag_table().knows(word))
            left_out += [[]] if leaves else []
        (left_out[-1] if leaves else kept).append(word)
    missing = sorted({*names} - {flag[0].partition("=")[0] for flag in left_out})
    if missing:
        raise MegatronFlagError(f"--custom-flag {missing[0]}: is not among the arguments. Leave it out.")
    return kept, left_out


_FORMER = {
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--distribute-checkpointed-activations": "--distribute-saved-activations",
}
"""Flag of earlier releases -> its present name."""


def _unknown_flag(name: str) -> str:
    if name in _FORMER:
        return f"{name}: is {_FORMER[name]} in Megatron-LM today. Rename it, or leave it out with --custom-flag={name}."
    hint = flag_table().hint(name)
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
        return evaluate(value)
    except ValueError:
        return value
