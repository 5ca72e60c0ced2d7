"""Problems as text for a terminal, and messages of errors that list them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mb_config.preflight.problems import origin_texts
from mb_config.resolve.fallbacks import NO_TRANSFORMER_ENGINE
from mb_schema import exit_codes
from mb_schema.exit_codes import FAILURE
from mb_schema.rules import Problem, RuleError


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours for a terminal; plain text elsewhere."""

    on: bool

    def __call__(self, text: str, code: str) -> str:
        """Return the text with an SGR code such as "31"."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text


def listing(problems: Sequence[Problem], colours: Colours) -> list[str]:
    """Return the lines of the problems, grouped by section, errors before warnings."""
    lines = []
    ordered = sorted(problems, key=lambda problem: (_section(problem), problem.severity))
    for section, group in groupby(ordered, key=_section):
        lines.append(colours(section, "1"))
        for problem in group:
            lines += _entry(problem, colours)
    return lines


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def _section(problem: Problem) -> str:
    return problem.fields[0].partition(".")[0].replace("facts", "this launch")


def _entry(problem: Problem, colours: Colours) -> list[str]:
    """Return the lines of a problem: message, reason, fix and the origins of the values."""
    colour = "31" if problem.severity == "error" else "33"
    path = problem.fields[0].removeprefix("facts.")
    head = f"  {colours(f'{problem.severity} {problem.id}', colour)}  {path}: {problem.message}"
    body = [f"because {problem.why}", problem.fix]
    if problem.origin.get("model.transformer_impl") == NO_TRANSFORMER_ENGINE:
        body.append(
            "Or check it for the GPU that it is meant for (option --gpu of check and plan): this machine has none."
        )
    return [head, *(f"      {text}" for text in (*body, *origin_texts(problem)))]


def message_of(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error.

    Violated rules, of any package, are listed as `check` lists them, after their number.
    """
    if not isinstance(error, RuleError):
        return exit_codes.message_of(error)
    head = f"the configuration has {counted(len(error.problems), 'problem')}"
    return "\n".join([head, *listing(error.problems, Colours(False))]), FAILURE
