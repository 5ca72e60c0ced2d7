"""The commands that a shell script would start, found without starting any program."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from mb_config.megatron_lm.flag_table import MegatronFlagError
from mb_config.megatron_lm.shell.conditions import decide
from mb_config.megatron_lm.shell.expansion import (
    MARK,
    MAX_ITEMS,
    Expander,
    Words,
    cut,
    is_empty,
    mark,
    marked_names,
)
from mb_config.megatron_lm.shell.printing import PRINTING, printed
from mb_config.megatron_lm.shell.slurm import allocation
from mb_config.megatron_lm.shell.syntax import (
    ASSIGNMENT,
    AndOr,
    Case,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirected,
    SimpleCommand,
    Statement,
    While,
    array_words,
    expression_parts,
    parse_script,
)

_SHELL = re.compile(r"(?:\S*/)?(?:ba|z|da)?sh")
_PAIR = re.compile(r"\[([^]]*)\]=(.*)", re.DOTALL)
"""An entry of an associative array; it is stored as a variable of its own, `NAME[key]`."""
_SHELL_COMMAND = re.compile(r"-[a-z]*c")
_COMMAND_LINE = re.compile(r"\S\s.*\.py\s|\.py\s.*\S", re.DOTALL)
"""A word that is a command line, as in `ssh HOST "torchrun ..."` and `sbatch --wrap="torchrun ..."`."""
_OPTION = re.compile(r"^--?[\w-]+=")
_SIGNS = ("&&", "||", "(", ")", "<", ">")
"""Words of `[[ ... ]]` that are not expanded."""
_READING = ("read", "mapfile", "readarray")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_SUCCEED = ("echo", "printf", "mkdir", "pushd", "popd", "ulimit")
_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedCommand:
    """A command of a script."""

    words: tuple[str, ...]
    """Its words. Values that are not known are marked, see `expansion.MARK`."""
    environment: Mapping[str, str]
    """Variables that the script exports to it."""


@dataclass(slots=True, kw_only=True)
class Interpretation:
    """What a script does."""

    commands: list[StartedCommand] = field(default_factory=list)
    variables: dict[str, "str | list[str]"] = field(default_factory=dict)
    """Variables at its end."""
    undecided: list[str] = field(default_factory=list)
    """Conditions that depend on files or unknown values, and count as false, where variables are set under them."""
    not_read: list[str] = field(default_factory=list)
    """Files that it sources, and that do not exist."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Variable that is not set -> the value that the script has for this case, as in `${TP:-2}`, unless it is empty."""
    ended_where: str = ""
    """Condition or case in which it ends itself, such as that a variable is not set; empty if it runs to its end."""
    uses_arguments: bool = False
    """True if it reads its arguments in one go (`$@`, `$#`)."""


def interpret(
    text: str, *, variables: Mapping[str, str], arguments: Sequence[str] = (), path: Path | None = None
) -> Interpretation:
    """Follow the statements of a script.

    Args:
        text: The script.
        variables: Values of variables, which take precedence over assignments of the script.
        arguments: Its arguments, `$1` and so on.
        path: The script, next to which files that it sources are read.

    Raises:
        MegatronFlagError: It cannot be parsed.
    """
    interpretation = Interpretation(variables={**variables})
    shell = _Shell(interpretation, fixed=frozenset(variables), arguments=[*arguments], path=path)
    shell.contained(text)
    interpretation.uses_arguments = shell.expander.uses_arguments
    return interpretation


class _Exit(Exception):
    """The script ends itself."""


class _Return(Exception):
    """A function or a sourced file ends."""


@dataclass(slots=True)
class _Output:
    """What the commands of a substitution print."""

    parts: list[str] = field(default_factory=list)
    known: bool = True
    """False if it depends on a program, a file, or a value that is not known."""


class _Shell:
    def __init__(
        self, found: Interpretation, *, fixed: frozenset[str], arguments: list[str], path: Path | None
    ) -> None:
        self.found, self.fixed, self.path, self.depth = found, fixed, path, 0
        self.variables = found.variables
        self.printing: _Output | None = None
        self.stdin: list[str] | None = None
        self.exported: set[str] = set()
        self.functions: dict[str, list[Statement]] = {}
        self.expander = Expander(self.variables, arguments, str(path or "script.sh"))
        self.expander.assign, self.expander.output = self.assign, self.output
        self.expander.defaults = found.defaults

    def run(self, statements: Sequence[Statement]) -> bool | None:
        """Follow statements; return whether the last succeeds, None if that is not known."""
        status: bool | None = True
        for statement in statements:
            status = self.follow(statement)
        return status

    def follow(self, statement: Statement) -> bool | None:
        """Follow a statement; return whether it succeeds, None if that is not known."""
        return _FOLLOWED[type(statement)](self, statement)

    def output(self, command: str) -> str | None:
        """Return what the command of a substitution prints; None if that is not known. No variable changes."""
        if self.depth >= _DEPTH:
            return None
        if command.lstrip().startswith("<"):
            text = self.contents(self.expander.text(command.strip()[1:].strip()))
            return None if text is None else text.rstrip("\n")
        found = Interpretation(variables={**self.variables}, defaults=self.found.defaults)
        printing = _Output()
        child = self.child(self.path, [*self.expander.arguments], found=found, printing=printing)
        child.expander.script, child.expander.folder = self.expander.script, self.expander.folder
        try:
            child.contained(command)
        except MegatronFlagError:
            return None
        self.expander.uses_arguments |= child.expander.uses_arguments
        return "".join(printing.parts).rstrip("\n") if printing.known else None

    def uncertain(self) -> None:
        """Record that what a substitution prints is not known."""
        if self.printing is not None:
            self.printing.known = False

    def pipeline(self, statement: Pipeline) -> bool | None:
        if len(statement.parts) > 1:
            self.uncertain()
        if len(statement.parts) == 1:
            status = self.follow(statement.parts[0])
        else:
            status = [self.subshell(partial(self.follow, part)) for part in statement.parts][-1]
        return not status if statement.negated and status is not None else status

    def and_or(self, statement: AndOr) -> bool | None:
        status = self.follow(statement.left)
        runs = status is not False if statement.operator == "&&" else status is False
        if status is None:
            self.uncertain()
        return self.follow(statement.right) if runs else status

    def group(self, statement: Group) -> bool | None:
        return (
            self.subshell(partial(self.run, statement.body))
            if statement.subshell
            else self.run(statement.body)
        )

    def define(self, statement: Function) -> bool:
        self.functions[statement.name] = statement.body
        return True

    @contextmanager
    def ending(self, where: str) -> Iterator[None]:
        """Record the condition or case under which the script ends itself, if its statements do so."""
        try:
            yield
        except _Exit:
            self.found.ended_where = self.found.ended_where or where
            raise

    def subshell(self, follow: Callable[[], bool | None]) -> bool | None:
        """Follow statements of a process of its own: the variables that they set, and `exit`, end with it."""
        before = {
            name: [*value] if isinstance(value, list) else value for name, value in self.variables.items()
        }
        folder, arguments, exported = self.expander.folder, [*self.expander.arguments], {*self.exported}
        try:
            return follow()
        except _Exit:
            return None
        finally:
            self.variables.clear()
            self.variables.update(before)
            self.expander.folder, self.expander.arguments = folder, arguments
            self.exported.clear()
            self.exported.update(exported)

    def redirected(self, statement: Redirected) -> bool | None:
        """Follow a compound statement whose commands read lines of one input."""
        text = self.bodies(statement.source)[-1]
        self.stdin, before = text.splitlines() if not MARK.search(text) else None, self.stdin
        try:
            return self.follow(statement.statement)
        finally:
            self.stdin = before

    def branch(self, statement: If) -> bool | None:
        for condition, body in statement.branches:
            holds = self.run(condition)
            if holds:
                with self.ending(written(condition)):
                    return self.run(body)
            if holds is None:
                self.uncertain()
                if any(True for _ in assigned_names(body)):
                    self.found.undecided.append(written(condition))
        return self.run(statement.otherwise)

    def case(self, statement: Case) -> bool | None:
        word = MARK.sub("", self.expander.text(statement.word))
        for patterns, body in statement.arms:
            if any(fnmatchcase(word, self.expander.text(pattern)) for pattern in patterns):
                with self.ending(f"{statement.word} is {word}"):
                    return self.run(body)
        return True

    def loop(self, statement: For) -> bool | None:
        if statement.words is None:
            items = [*self.expander.arguments]
        else:
            items = [word for raw in statement.words for word in self.expander.words(raw)]
        for item in items[:MAX_ITEMS]:
            if statement.name:
                self.assign(statement.name, item)
            self.run(statement.body)
        return True

    def repeat(self, statement: While) -> bool | None:
        for _ in range(MAX_ITEMS):
            holds = self.run(statement.condition)
            if holds is None or holds is statement.until:
                break
            before = (len(self.expander.arguments), {**self.variables})
            self.run(statement.body)
            if before == (len(self.expander.arguments), self.variables):
                break  # it waits for something
        return True

    def simple(self, command: SimpleCommand) -> bool | None:
        assignments = [*takewhile(bool, map(ASSIGNMENT.fullmatch, command.words))]
        raw = command.words[len(assignments) :]
        documents = self.bodies(command) if raw[:1] and raw[0] in _READING else self.documents(command)
        if not raw:
            for assigned in filter(None, assignments):
                self.assignment(assigned)
            return True
        if raw[0] in ("[[", *_READING, *_DECLARATIONS) or raw[0].startswith("(("):
            own = {item[1]: item[4] for item in filter(None, assignments)}
            separators = self.expander.text(own["IFS"]) if "IFS" in own else self.expander.separators()
            return self.keyword(raw, documents, separators=separators)
        words = [word for item in raw for word in self.expander.words(item)]
        if not words:
            return True
        own = {item[1]: self.expander.text(item[4]) for item in filter(None, assignments)}
        if (builtin := _BUILTINS.get(words[0])) is not None:
            return builtin(self, words)
        if self.printing is None or words[0] not in PRINTING or words[0] in self.functions:
            return self.started(words, own)
        text = printed(words, documents, folder=self.expander.folder, contents=self.contents)
        if text is None:
            self.uncertain()
        elif not command.redirected:
            self.printing.parts.append(text)
        return True

    def documents(self, command: SimpleCommand) -> list[str]:
        """Return the here-documents of a command; outside of a substitution they may be scripts, and are followed."""
        bodies = self.bodies(command)
        for body in bodies if self.printing is None else ():
            self.script_text(body, lenient=True)
        return bodies

    def bodies(self, command: SimpleCommand) -> list[str]:
        bodies = [
            document.body if document.quoted else self.expander.document(document.body)
            for document in command.documents
        ]
        words = command.words
        reads = (
            not words
            or words[0] in (*_READING, "cat")
            or _SHELL.fullmatch(words[0])
            or ASSIGNMENT.match(words[0])
        )
        return bodies if command.input is None or not reads else [*bodies, self.expander.text(command.input)]

    def keyword(self, raw: list[str], documents: list[str], *, separators: str) -> bool | None:
        """Follow a command whose words are not expanded like those of others, or that reads a document."""
        if raw[0] in _READING:
            read = self.read_input if raw[0] == "read" else self.read_lines
            return read([word for item in raw for word in self.expander.words(item)], documents, separators)
        if raw[0] == "[[":
            expanded = [
                self._expression(word)
                if before == "=~"
                else word
                if word in _SIGNS
                else self.expander.text(word)
                for before, word in pairwise(raw[:-1])
            ]
            return decide(expanded, patterns=True)
        if raw[0] in _DECLARATIONS:
            return self.declaration(raw)
        value = self.expander.arithmetic(raw[0][2:-2])
        return None if MARK.search(value) or not value.isdigit() else value != "0"

    def _expression(self, raw: str) -> str:
        """Expand a regular expression. Its quoted parts are literal text."""
        parts = [(self.expander.text(part), quoted) for part, quoted in expression_parts(raw)]
        return "".join(
            re.escape(text) if quoted and not MARK.search(text) else text for text, quoted in parts
        )

    def change_folder(self, words: list[str]) -> bool:
        folders = [word for word in words[1:] if not word.startswith("-")]
        if self.printing is not None and folders:
            self.expander.folder = normpath(join(self.expander.folder, folders[0]))
        return True

    def let(self, words: list[str]) -> bool:
        for expression in words[1:]:
            self.expander.arithmetic(expression)
        return True

    def exit(self, words: list[str]) -> bool:
        raise _Exit

    def leave_function(self, words: list[str]) -> bool:
        raise _Return

    def replace_shell(self, words: list[str]) -> bool | None:
        return self.started(words[1:], {}) if len(words) > 1 else True

    def source(self, words: list[str]) -> bool | None:
        path = self.resolve(words[1]) if len(words) > 1 else None
        if path is None or self.depth >= _DEPTH:
            self.found.not_read += [MARK.sub(lambda found: f"${found[1]}", word) for word in words[1:2]]
            return None
        before, self.path = self.path, path
        self.expander.script, script = str(path), self.expander.script
        self.depth += 1
        try:
            return self.run(parse_script(path.read_text(encoding="utf-8")))
        except _Return:
            return None
        finally:
            self.path, self.expander.script = before, script
            self.depth -= 1

    def evaluate(self, words: list[str]) -> None:
        self.script_text(" ".join(words[1:]))

    def shift(self, words: list[str]) -> bool:
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        del self.expander.arguments[:count]
        return True

    def set_arguments(self, words: list[str]) -> bool:
        if "--" in words:
            self.expander.arguments = words[words.index("--") + 1 :]
        return True

    def unset(self, words: list[str]) -> bool:
        for variable in words[1:]:
            if variable not in self.fixed:
                self.variables.pop(variable, None)
            self.exported.discard(variable)
        return True

    def read_input(self, words: list[str], documents: list[str], separators: str) -> bool:
        """Set the variables of `read` from its input or that of the statement around it; else they are unknown."""
        options = "".join(word[1:] for word in words[1:] if word.startswith("-"))
        taken = {n + 1 for n, word in enumerate(words) if re.fullmatch("-[a-zA-Z]*[dinNptu]", word)}
        names = [word for n, word in enumerate(words) if n and n not in taken and word.isidentifier()] or [
            "REPLY"
        ]
        whole = any(words[n] == "" for n in taken if n < len(words))
        lines = [line for text in documents[-1:] for line in text.split("\n")] if documents else self.stdin
        if lines is None or any(name.startswith("$") for name in marked_names("\n".join(lines))):
            for name in names:
                self.assign(name, mark(name))
            return True
        text = "\n".join([*lines, ""]) if whole else next(iter(lines), "")
        ended = whole or not lines  # bash reaches the end of its input before a delimiter
        del lines[: len(lines) if whole else 1]
        while "r" not in options and not whole and re.search(r"(?<!\\)(\\\\)*\\$", text) and lines:
            text = f"{text[:-1]}{lines.pop(0)}"
        if "r" not in options:
            text = re.sub(r"\\(.)", lambda found: found[1].strip("\n"), text, flags=re.DOTALL)
        if "a" in options:
            pieces = Words()
            pieces.split(text, separators)
            pieces.close()
            self.set_list(names[0], pieces.finished)
            return not ended
        parts = cut(text, separators, len(names)) if separators else [text]
        for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
            self.assign(name, part)
        return not ended

    def read_lines(self, words: list[str], documents: list[str], _separators: str) -> bool:
        """Set the list of `mapfile` or `readarray` to the lines of its input; it is unknown if that is."""
        options = {word for word in words[1:] if word.startswith("-")}
        name = words[-1] if len(words) > 1 and words[-1].isidentifier() else "MAPFILE"
        lines = documents[-1].split("\n") if documents else self.stdin
        if lines is None or options - {"-t"} or any(MARK.search(line) for line in lines):
            self.assign(name, mark(name))
            return True
        self.set_list(name, [line if options else f"{line}\n" for line in lines])
        if not documents:
            lines.clear()
        return True

    def set_list(self, name: str, items: list[str]) -> None:
        if name not in self.fixed:
            self.variables[name] = items

    def declaration(self, raw: list[str]) -> bool:
        for word in raw[1:]:
            assigned = ASSIGNMENT.fullmatch(word)
            if assigned is not None:
                self.assignment(assigned)
            name = assigned[1] if assigned is not None else word
            if name.isidentifier() and (raw[0] == "export" or "-x" in raw[1:]):
                self.exported.add(name)
        return True

    def assignment(self, assigned: "re.Match[str]") -> None:
        name, index, adds, value = assigned[1], assigned[2], bool(assigned[3]), assigned[4]
        if name in self.fixed:
            return
        before = self.variables.get(name)
        if value.startswith("("):
            pairs = [_PAIR.fullmatch(raw) for raw in array_words(value)]
            if pairs and all(pairs):
                for pair in filter(None, pairs):
                    self.variables[f"{name}[{self.expander.text(pair[1])}]"] = self.expander.text(pair[2])
                return
            items = [word for raw in array_words(value) for word in self.expander.words(raw)]
            old = before if isinstance(before, list) else [before] if before else []
            self.variables[name] = [*old, *items] if adds else items
            return
        text = self.expander.text(value)
        key = "0" if index is None else self.expander.text(index)
        if not key.isdigit():
            self.variables[f"{name}[{key}]"] = text
            return
        if index is not None or isinstance(before, list):
            items = [*before] if isinstance(before, list) else [before] if before else []
            position = int(key)
            items += [""] * (position + 1 - len(items))
            items[position] = items[position] + text if adds else text
            self.variables[name] = items
            return
        self.assign(name, f"{before or ''}{text}" if adds else text)

    def assign(self, name: str, text: str) -> None:
        """Set a variable; a substitution that is not evaluated makes it unknown under its own name."""
        if name in self.fixed:
            return
        if any(unknown.startswith("$") for unknown in marked_names(text)) and "--" not in text:
            text = mark(name)
        self.variables[name] = text

    def started(self, words: list[str], own: Mapping[str, str]) -> bool | None:
        if words[0] in self.functions and self.depth < _DEPTH:
            return self.call(self.functions[words[0]], words[1:])
        if words[0] not in _SUCCEED:
            self.uncertain()
        self.found.commands.append(
            StartedCommand(words=tuple(words), environment={**self.environment(), **own})
        )
        if words[0] in PRINTING:
            return True
        text = next((command for n in range(len(words)) if (command := _shell_command(words[n:]))), None)
        if text is not None:
            for name, value in passed_environment(words).items():
                self.assign(name, value)
                self.exported.add(name)
            self.script_text(text)
            return None
        for word in words[1:]:
            if _COMMAND_LINE.search(word):
                self.script_text(_OPTION.sub("", word), lenient=True)
        self.started_script(words)
        return True if words[0] in _SUCCEED else None

    def started_script(self, words: Sequence[str]) -> None:
        """Follow a script that the command starts, if it exists next to this one."""
        for index, word in enumerate(words):
            if not word.endswith((".sh", ".sbatch", ".slurm")) or MARK.search(word):
                continue
            starts = (
                index == 0
                or _SHELL.fullmatch(words[index - 1])
                or words[0] in ("sbatch", "srun", "bash", "sh")
            )
            path = self.resolve(word)
            if starts and path is not None and self.depth < _DEPTH:
                self.child(path, [*words[index + 1 :]]).contained(path.read_text(encoding="utf-8"))
            return

    def environment(self) -> dict[str, str]:
        return {
            name: value
            for name in sorted(self.exported)
            if isinstance(value := self.variables.get(name), str)
        }

    def call(self, body: Sequence[Statement], arguments: list[str]) -> bool | None:
        before, self.expander.arguments = self.expander.arguments, arguments
        self.depth += 1
        try:
            return self.run(body)
        except _Return:
            return None
        finally:
            self.expander.arguments = before
            self.depth -= 1

    def resolve(self, name: str) -> Path | None:
        """Return a file that a script names, relative to the folder of the script; None if there is none."""
        if self.path is None or MARK.search(name):
            return None
        for folder in (Path(self.expander.folder), self.path.parent):
            if (folder / name).is_file():
                return folder / name
        return None

    def contents(self, name: str) -> str | None:
        """Return the text of a file that a script prints; None if there is none."""
        path = self.resolve(name)
        return None if path is None else path.read_text(encoding="utf-8", errors="replace")

    def child(
        self,
        path: Path | None,
        arguments: list[str],
        *,
        found: Interpretation | None = None,
        printing: _Output | None = None,
    ) -> "_Shell":
        child = _Shell(found or self.found, fixed=self.fixed, arguments=arguments, path=path)
        child.exported, child.functions = {*self.exported}, {**self.functions}
        child.depth, child.printing = self.depth + 1, printing or self.printing
        return child

    def contained(self, text: str) -> None:
        """Follow a script; what it requests of Slurm is granted."""
        for name, value in allocation(text, self.variables).items():
            self.variables.setdefault(name, value)
        with suppress(_Exit, _Return):
            self.run(parse_script(text))

    def script_text(self, text: str, *, lenient: bool = False) -> None:
        """Follow the text of a command, of `eval`, or of a here-document."""
        if self.depth >= _DEPTH:
            return
        child = self.child(self.path, [*self.expander.arguments])
        try:
            child.contained(text)
        except MegatronFlagError:
            if not lenient:
                raise


def _shell_command(words: Sequence[str]) -> str | None:
    """Return the command after `-c` of a shell, as in `bash -x -c COMMAND`; None if words begin otherwise."""
    if not _SHELL.fullmatch(words[0]):
        return None
    for option, command in pairwise(words[1:]):
        if _SHELL_COMMAND.fullmatch(option):
            return command
        if not option.startswith("-"):
            return None
    return None


_FOLLOWED: Mapping[type, Callable[[_Shell, Any], bool | None]] = {
    SimpleCommand: _Shell.simple,
    Pipeline: _Shell.pipeline,
    AndOr: _Shell.and_or,
    Group: _Shell.group,
    Redirected: _Shell.redirected,
    Function: _Shell.define,
    If: _Shell.branch,
    Case: _Shell.case,
    For: _Shell.loop,
    While: _Shell.repeat,
}

_BUILTINS: Mapping[str, Callable[[_Shell, list[str]], bool | None]] = {
    "[": lambda _shell, words: decide(words[1:-1], patterns=False),
    "test": lambda _shell, words: decide(words[1:], patterns=False),
    **dict.fromkeys(("true", ":"), lambda _shell, _words: True),
    "false": lambda _shell, _words: False,
    **dict.fromkeys(("source", "."), _Shell.source),
    "exit": _Shell.exit,
    "exec": _Shell.replace_shell,
    "return": _Shell.leave_function,
    "eval": _Shell.evaluate,
    "shift": _Shell.shift,
    "set": _Shell.set_arguments,
    "unset": _Shell.unset,
    "cd": _Shell.change_folder,
    "let": _Shell.let,
}


def assigned_names(statements: Sequence[Statement]) -> Iterator[str]:
    """Yield the variables that statements set directly."""
    for statement in statements:
        if isinstance(statement, SimpleCommand):
            for word in statement.words:
                assigned = ASSIGNMENT.fullmatch(word)
                if assigned is not None:
                    yield assigned[1]
        elif isinstance(statement, Group):
            yield from assigned_names(statement.body)


def written(statements: Sequence[Statement]) -> str:
    """Return simple commands as they are written, for messages."""
    return "; ".join(" ".join(item.words) for item in statements if isinstance(item, SimpleCommand))


def holds_flags(value: "str | list[str]") -> bool:
    """Return whether a variable contains flags."""
    text = value if isinstance(value, str) else " ".join(value)
    return not is_empty(text) and re.search(r"(^|\s)--[a-z]", text) is not None


def passed_environment(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that `env` or the options of a container set, as in `docker run -e NAME=VALUE`."""
    found = {}
    after_env = False
    for previous, word in zip(["", *words], words, strict=False):
        after_env = word == "env" or (after_env and "=" in word)
        name, sign, value = word.removeprefix("--env=").partition("=")
        given = previous in ("-e", "--env") or word.startswith("--env=") or after_env
        if given and sign and name.isidentifier():
            found[name] = value
    return found
