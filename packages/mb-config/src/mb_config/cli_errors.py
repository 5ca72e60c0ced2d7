"""Exit codes of the command line, and messages of the errors that the user can cause."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from mb_config._rules import Problem
from mb_config._unusable_paths import unusable_path
from mb_config.errors import ConfigurationError
from mb_config.problems import ConfigError, origin_texts

DONE = 0
REJECTED = 1
BAD_INPUT = 2
INTERRUPTED = 130

ExitCodes = Callable[[Callable[[], int]], int]
"""Function that runs a command and returns its exit code, or prints its error and returns that of the error."""


def exit_code(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, or print its error. Other exceptions keep their traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except ConfigError as error:
        print(f"error: {problem_lines(error.problems)}", file=sys.stderr)
        return REJECTED
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT if error.bad_input else REJECTED
    except OSError as error:
        message = unusable_path(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return BAD_INPUT


def problem_lines(problems: Sequence[Problem]) -> str:
    """Return one line per problem, with the origins of its values if the user set one of them."""
    lines = []
    for problem in problems:
        by_user = any(not origin.startswith(("default", "recipe ")) for origin in problem.origin.values())
        origins = ", ".join(origin_texts(problem)) if by_user else ""
        lines.append(f"[{problem.id}] {problem}" + (f" ({origins})" if origins else ""))
    return "\n".join(lines)
