"""Words of a command line, read from a text or from a shell script that starts Megatron-LM."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mb_config.megatron_lm.flag_table import MegatronFlagError

_ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?::?-([^}]*))?\}|([A-Za-z_]\w*|\d+))")
_SHELL = re.compile(r"(?:\S*/)?(?:ba)?sh")
_SHELL_COMMAND = re.compile(r"-[a-z]*c")
LAUNCHER = re.compile(
    r"--(nproc[-_]per[-_]node|nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+|max[-_]restarts|tee"
    r"|log[-_]dir|standalone|local[-_]ranks[-_]filter)(=.*)?"
)
"""Options of torchrun, which stand in the same scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptWords:
    """Arguments in a script."""

    words: tuple[str, ...]
    """Flags of Megatron-LM and their values."""
    launcher: tuple[str, ...] = ()
    """Options of torchrun and their values."""


def read_words(text: str, *, variables: Mapping[str, str] | None = None) -> ScriptWords:
    """Return the flags in a text: arguments as on a command line, or a shell script.

    Of a script, simple assignments (`NAME=value`, `NAME=(--flag value)`, `NAME+=`), `$NAME`, `${NAME}`,
    `${NAME:-default}` and `${NAME[@]}` are understood, also in the command of `sh -c "..."`; nothing is executed.

    Args:
        text: The text.
        variables: Values of variables, which take precedence over those in the script.

    Raises:
        MegatronFlagError: The text cannot be split into words, or a variable has no value.
    """
    known = dict(variables or {})
    commands: list[str] = []
    for line in _statements(text):
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned is None:
            commands.append(_command_of_shell(line))
        elif assigned[1] not in (variables or {}):
            value = _value(assigned[3])
            known[assigned[1]] = f"{known.get(assigned[1], '')} {value}" if assigned[2] else value
    used = next((line for line in reversed(commands) if "--" in _expand(line, known, strict=False)), None)
    if used is None:
        raise MegatronFlagError(
            "no flags were found. Pass the arguments of pretrain_gpt.py, or the script with them."
        )
    return _split(_words(_expand(used, known, strict=True)))


def _command_of_shell(line: str) -> str:
    """Return the command that `sh -c "..."` or `bash -c "..."` runs in a statement; any other statement unchanged."""
    try:
        words = shlex.split(line)
    except ValueError:
        return line
    for shell, option, command in zip(words, words[1:], words[2:], strict=False):
        if _SHELL.fullmatch(shell) and _SHELL_COMMAND.fullmatch(option):
            return command
    return line


def _is_open(code: str) -> bool:
    """Return True if a quotation continues on the next line."""
    try:
        shlex.split(code)
    except ValueError:
        return True
    return False


def _statements(text: str) -> list[str]:
    """Return the statements of a script, each on one line, without comments.

    A list in parentheses is one statement, and so are the lines of a quotation.
    """
    joined = re.sub(r"\\\r?\n", " ", text)
    statements: list[str] = []
    open_list = open_quotation = ""
    for line in joined.splitlines():
        code = re.sub(r"(^|\s)#.*", "", line).strip()
        if open_quotation:
            code, open_quotation = f"{open_quotation} {code}", ""
        if not open_list and _is_open(code):
            open_quotation = code
        elif open_list:
            open_list += f" {code}"
        elif code.startswith("-") and statements:
            statements[-1] += f" {code}"  # flags on lines of their own, without a backslash
        elif re.match(r"(?:export\s+|local\s+)?[A-Za-z_]\w*\+?=\(", code):
            open_list = code
        elif code:
            statements.append(code)
        if open_list and open_list.rstrip().endswith(")"):
            statements.append(open_list)
            open_list = ""
    return [*statements, *(rest for rest in (open_list, open_quotation) if rest)]


def _value(text: str) -> str:
    """Return the value of an assignment without its quotes or the parentheses of a list."""
    value = text.strip().removesuffix(";").strip()
    if value.startswith("("):
        return value[1:].removesuffix(")").strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _expand(text: str, known: Mapping[str, str], *, strict: bool) -> str:
    missing: list[str] = []

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in known:
            return known[name]
        if found[2] is not None:
            return found[2]
        missing.append(name)
        return found[0]

    for _ in range(10):  # a value may contain further variables
        expanded = _VARIABLE.sub(replace, text)
        if expanded == text:
            break
        missing.clear()
        text = expanded
    if strict and missing:
        names = list(dict.fromkeys(missing))
        raise MegatronFlagError(
            f"variables without a value: {', '.join(names)}. Give them with "
            f"{' '.join(f'--set {name}=VALUE' for name in names[:3])}."
        )
    return text


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise MegatronFlagError(f"the arguments cannot be split into words: {error}.") from error


def _split(words: Sequence[str]) -> ScriptWords:
    """Separate the options of torchrun and words before the first flag from the flags."""
    ours: list[str] = []
    launcher: list[str] = []
    current = launcher
    for word in words:
        if word.startswith("--"):
            current = launcher if LAUNCHER.fullmatch(word) else ours
        elif word.endswith(".py"):
            current = launcher  # the program, whose flags follow
        elif word in ("|", "||", "&&", ";", "&", ">", ">>", "2>&1"):
            if ours:
                break
            launcher.clear()  # of a command before the one with the flags
            continue
        current.append(word)
    return ScriptWords(words=tuple(ours), launcher=tuple(word for word in launcher if word.startswith("--")))
