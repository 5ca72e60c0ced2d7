"""Expansion of the words of a shell script: quotations, braces, variables, lists, arithmetic.

A variable that is not set, and a substitution `$(command)` that is not evaluated, become marks in the text, so that
the reader of a command knows which of its words depend on them.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from itertools import count
from pathlib import PurePosixPath

from mb_config.megatron_lm.shell.syntax import skip_quotation

MARK = re.compile("\ue000([^\ue001]*)\ue001")
"""A value that is not known, with the name of the variable, or the text of the substitution after a `$`."""

_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_OPERATION = re.compile(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:")


_LIST = re.compile(r"\$(@|\{@|\{\w+\[@\])")
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:([-+*/%]?)=(?!=)(.+)|(\+\+|--))\s*", re.DOTALL)
"""An assignment in arithmetic, such as `N += 2` and `N++`."""
_OTHER_EACH_TIME = ("RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "BASHPID")
"""Variables that bash sets to another value in each run."""

MAX_ITEMS = 1000
"""Maximum number of items of a loop or of a range that are followed."""

_OF_THE_SHELL = ("0", "BASH_SOURCE", "?", "$", "!", "-")
"""Parameters that bash sets: the script, and numbers of processes and states, which are 0 here."""


BLANKS = " \t\n"
"""Characters that separate words unless `IFS` is set."""


def mark(name: str) -> str:
    """Return the text of an unknown value. Blanks are kept together."""
    kept = name.replace(" ", "\ue002")
    return f"\ue000{kept}\ue001"


def marked_names(text: str) -> list[str]:
    """Return the names of the unknown values in a text."""
    return [name.replace("\ue002", " ") for name in MARK.findall(text)]


def is_empty(text: str) -> bool:
    """Return True if a text is empty when its variables are not set."""
    return all(not name.startswith("$") for name in marked_names(text)) and not MARK.sub("", text)


def _separator(separators: str) -> "re.Pattern[str]":
    """Return the pattern of what ends a word: blanks count as one, each other character by itself."""
    blanks = "".join(each for each in separators if each in BLANKS)
    others = "".join(each for each in separators if each not in BLANKS)
    some = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    return re.compile(f"{some}*[{re.escape(others)}]{some}*|{some}+" if others else f"{some}+")


def cut(text: str, separators: str, count: int) -> list[str]:
    """Return at most `count` fields of a line, as `read` sets variables; the last one holds the rest."""
    pattern = _separator(separators)
    blanks = "".join(each for each in separators if each in BLANKS)
    fields: list[str] = []
    text = text.strip(blanks) if blanks else text
    while len(fields) < count - 1 and (found := pattern.search(text)):
        fields.append(text[: found.start()])
        text = text[found.end() :]
    ends = [*pattern.finditer(text)]
    if len(ends) == 1 and ends[0].end() == len(text):
        text = text[: ends[0].start()]
    return [*fields, text] if text else fields


class Words:
    """Words that grow by the pieces of an expansion."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.current: str | None = None

    def add(self, text: str) -> None:
        """Add quoted text."""
        self.current = (self.current or "") + text

    def split(self, text: str, separators: str = BLANKS) -> None:
        """Add the value of a variable outside of quotations, in which separators (`IFS`) end words."""
        position = 0
        for found in _separator(separators).finditer(text):
            if piece := text[position : found.start()]:
                self.add(piece)
            if self.current is None and not found[0].isspace():
                self.add("")
            self.close()
            position = found.end()
        if rest := text[position:]:
            self.add(rest)

    def items(self, items: Sequence[str]) -> None:
        """Add the items of a list, each a word."""
        for index, item in enumerate(items):
            if index:
                self.close()
            self.add(item)

    def close(self) -> None:
        """End the current word."""
        if self.current is not None:
            self.finished.append(self.current)
        self.current = None


class Expander:
    """Expands words with the variables of a script."""

    def __init__(
        self, variables: Mapping[str, "str | list[str]"], arguments: Sequence[str], script: str
    ) -> None:
        self.variables, self.arguments, self.script = variables, [*arguments], script
        self.folder = str(PurePosixPath(script).parent)
        self.uses_arguments = False
        self.defaults: dict[str, str] = {}
        self.assign: Callable[[str, str], None] = lambda _name, _value: None
        self.output: Callable[[str], str | None] = lambda _command: None

    def separators(self) -> str:
        """Return the characters that separate words."""
        value = self.variables.get("IFS", BLANKS)
        return value if isinstance(value, str) else BLANKS

    def words(self, raw: str) -> list[str]:
        """Return the words that a word of the script becomes: none, one, or several."""
        words = Words()
        for each in _braces(raw):
            self._scan(each, words)
            words.close()
        return words.finished

    def text(self, raw: str) -> str:
        """Return the text of a word that is not split, such as the value of an assignment."""
        words = Words()
        self._scan(raw, words, split=False)
        return words.current or ""

    def document(self, body: str) -> str:
        """Return the lines of a here-document."""
        words = Words()
        self._scan(body, words, quoted=True, split=False)
        return words.current or ""

    def _scan(self, text: str, words: Words, *, quoted: bool = False, split: bool = True) -> None:
        """Add the words of a text to `words`, with its quotations, parameters and substitutions expanded."""
        position = 0
        while position < len(text):
            start, pair = position, text[position : position + 2]
            if quoted and pair[0] == "\\":
                escapes = pair[1:] in ("$", "`", '"', "\\", "\n")
                words.add(_unescaped(pair) if escapes else "\\")
                position += 2 if escapes else 1
            elif pair[0] == "`" or pair in ("$(", "${"):
                position = skip_quotation(text, position)
                self._substitution(text[start:position], words, quoted=quoted, split=split)
            elif pair[0] == "$" and (name := _NAME.match(text, position + 1)):
                self._parameter(name[0], words, quoted=quoted, split=split)
                position = name.end()
            elif not quoted and (pair[0] in "'\"\\" or pair in ("$'", '$"')):
                position = skip_quotation(text, position)
                self._quotation(text[start:position], words, split=split)
            else:
                words.add(pair[0])
                position += 1

    def _quotation(self, piece: str, words: Words, *, split: bool) -> None:
        if piece[0] == "\\":
            words.add(_unescaped(piece))
        elif piece[0] == "'":
            words.add(piece[1:-1])
        elif piece.startswith("$'"):
            words.add(with_escapes(piece[2:-1]))
        else:
            content = piece.removeprefix("$")[1:-1]
            if not _LIST.match(content):  # of an empty list, not even an empty word remains
                words.add("")
            self._scan(content, words, quoted=True, split=split)

    def _substitution(self, piece: str, words: Words, *, quoted: bool, split: bool) -> None:
        if piece.startswith("${"):
            self._parameter(piece[2:-1], words, quoted=quoted, split=split)
            return
        if piece.startswith("$(("):
            value = self.arithmetic(piece[3:-2])
        else:
            command = piece[1:-1] if piece[0] == "`" else piece[2:-1]
            printed = self.output(command)
            value = mark(f"$({command.strip()})") if printed is None else printed
        if quoted or not split:
            words.add(value)
        else:
            words.split(value, self.separators())

    def _parameter(self, body: str, words: Words, *, quoted: bool, split: bool) -> None:
        values, separate = self._values(body)
        if quoted and separate and split:
            words.items(values)
        elif quoted or not split:
            separator = " " if separate else str(self.variables.get("IFS", " "))[:1]
            words.add(separator.join(values))
        else:
            for index, value in enumerate(values):
                if index:
                    words.close()
                words.split(value, self.separators())

    def _values(self, body: str) -> tuple[list[str], bool]:
        """Return the values of `${body}`, and whether each is a word inside of quotations as well."""
        if body.startswith("#") and len(body) > 1:
            return [self._length(body[1:])], False
        if keys := re.fullmatch(r"!(\w+)\[[@*]\]", body):
            return [*self._entries(keys[1])], True
        if body.startswith("!"):
            pointed = "".join(self._values(body[1:])[0])
            return self._values(pointed) if re.fullmatch(r"\w+", pointed) else ([mark(body)], False)
        name = re.match(r"\d+", body) or _NAME.match(body)  # `${10}` is one parameter, `$10` is `$1` and a 0
        if name is None:
            return [mark(f"${{{body}}}")], False
        rest = body[name.end() :]
        index = re.match(r"\[([^]]*)\]", rest)
        values = self._lookup(name[0], None if index is None else index[1])
        rest = rest[index.end() :] if index else rest
        separate = name[0] == "@" or (index is not None and index[1] == "@")
        is_list = name[0] in ("@", "*") or index is not None
        if values is not None and is_list and re.match(r":(?![-=+?])", rest):
            items = [self.script, *values] if name[0] in ("@", "*") else values
            return items[self._span(rest[1:])], separate
        return self._operate(name[0], values, rest), separate

    def _length(self, body: str) -> str:
        """Return the value of `${#body}`: the number of characters, or of the items of a list."""
        name, _, index = body.removesuffix("]").partition("[")
        values = self._lookup(name, index or None) or []
        if any(unknown.startswith("$") for value in values for unknown in marked_names(value)):
            return mark(f"${{#{body}}}")
        return str(len(values) if "@" in (name, index) or "*" in (name, index) else len("".join(values)))

    def _span(self, word: str) -> slice:
        """Return the slice of `${NAME:start:length}`."""
        start, _, length = word.partition(":")
        first = self._index(start.strip() or "0")
        return slice(first, first + self._index(length) if length else None)

    def _lookup(self, name: str, index: str | None) -> list[str] | None:
        """Return the values of a parameter; None if it is not set."""
        if name in ("@", "*", "#"):
            self.uses_arguments = True
            return [str(len(self.arguments))] if name == "#" else [*self.arguments]
        if name in _OTHER_EACH_TIME and name not in self.variables:
            return [mark(f"${name}")]
        if name in _OF_THE_SHELL:
            return [self.script if name in ("0", "BASH_SOURCE") else "0"]
        if name.isdigit() and name not in self.variables:
            return [self.arguments[int(name) - 1]] if int(name) <= len(self.arguments) else None
        entries = self._entries(name)
        if index in ("@", "*"):
            return [*entries.values()] if entries or name in self.variables else None
        key = "0" if index is None else self.text(index)
        if key not in entries:
            key = str(self._index(key))
        if key.startswith("-"):
            key = str(len(entries) + int(key))
        return [entries[key]] if key in entries else None

    def _entries(self, name: str) -> dict[str, str]:
        """Return the items of a list, of an associative array, or a single value, by their keys."""
        value = self.variables.get(name, self.folder if name == "PWD" else None)
        if value is None:
            start = f"{name}["
            found = {key: text for key, text in self.variables.items() if key.startswith(start)}
            return {key[len(start) : -1]: text for key, text in found.items() if isinstance(text, str)}
        return dict(zip(map(str, count()), value if isinstance(value, list) else [value], strict=False))

    def _index(self, text: str) -> int:
        value = self.arithmetic(text)
        return int(value) if re.fullmatch(r"-?\d+", value) else 0

    def _operate(self, name: str, values: list[str] | None, rest: str) -> list[str]:
        """Return the values of `${NAME...}`.

        Args:
            name: Name of the parameter.
            values: Its values; None: it is not set.
            rest: What follows the name in the braces.
        """
        kind = _OPERATION.match(rest)
        operation, word = ("", "") if kind is None else (kind[0], rest[kind.end() :])
        unset = values is None or (":" in operation and all(is_empty(value) for value in values))
        if operation in ("-", ":-", "=", ":=") and unset:
            value = self.text(word)
            if value and name.isidentifier():
                self.defaults[name] = value
            if "=" in operation:
                self.assign(name, value)
            return [value]
        if operation in ("+", ":+"):
            return [] if unset else [self.text(word)]
        if values is None:
            return [] if name in ("@", "*") else [mark(name)]
        if operation in ("", "-", ":-", "=", ":=", "?", ":?"):
            return values
        if operation == ":":
            return [value[self._span(word)] for value in values]
        return [
            value if MARK.search(value) else _edited(value, operation, self.text(word)) for value in values
        ]

    def arithmetic(self, expression: str) -> str:
        """Return the value of an arithmetic expression, or the marks of its unknown values."""
        text = self.text(expression.strip().replace('"', ""))
        if assigned := _ASSIGNS.fullmatch(text):
            name, sign, value, step = assigned.groups()
            before = self.arithmetic(name)
            after = self.arithmetic(
                f"{name} {step[0]} 1" if step else f"{name} {sign} ({value})" if sign else value
            )
            self.assign(name, after)
            return before if step else after
        for _ in range(10):  # a name is its value, which may be an expression
            replaced = re.sub(r"[A-Za-z_]\w*(?![^\ue000]*\ue001)", self._number, text)
            if replaced == text:
                break
            text = replaced
        marks = MARK.findall(text)
        if marks:
            return "".join(f"\ue000{name}\ue001" for name in dict.fromkeys(marks))
        try:
            return str(evaluate(text))
        except (SyntaxError, ValueError, ZeroDivisionError, TypeError):
            return mark(f"$(({expression}))")

    def _number(self, name: "re.Match[str]") -> str:
        values = self._lookup(name[0], None)
        return f"({values[0]})" if values and values[0].strip() else mark(name[0])


def _edited(value: str, operation: str, word: str) -> str:
    """Return a value after an operation of `${NAME...}` that changes its case, replaces a part, or removes an end."""
    if operation in ("^^", ",,"):
        return value.upper() if operation == "^^" else value.lower()
    if operation in ("/", "//"):
        pattern, _, replacement = word.partition("/")
        compiled = re.compile(translate(pattern).replace(r"\Z", "").replace(r"\z", ""))
        return compiled.sub(lambda _: replacement, value, count=operation == "/")
    matches = re.compile(translate(word)).match
    cuts = range(len(value) + 1)
    if operation[0] == "#":
        order = cuts if operation == "#" else reversed(cuts)
        return next((value[cut:] for cut in order if matches(value[:cut])), value)
    order = reversed(cuts) if operation == "%" else cuts
    return next((value[:cut] for cut in order if matches(value[cut:])), value)


def with_escapes(text: str) -> str:
    """Return a text with the characters that its escapes mean, such as a newline."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text, flags=re.DOTALL)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def _unescaped(pair: str) -> str:
    return "" if pair == "\\\n" else pair[1:]


_BRACES = re.compile(r"(?<!\$)\{(?:(-?\d+)\.\.(-?\d+)|([^{}\"'$\s]*,[^{}\"'$\s]*))\}")


def _braces(raw: str) -> list[str]:
    """Return the words of `a{1..3}` or `a{x,y}`; braces after a quotation are text."""
    braces = _BRACES.search(raw)
    if braces is None or set(raw[: braces.start()]) & {"'", '"', "\\"}:
        return [raw]
    if braces[3] is not None:
        items = braces[3].split(",")
    else:
        first, last = int(braces[1]), int(braces[2])
        step = 1 if first <= last else -1
        items = [str(number) for number in range(first, last + step, step)][:MAX_ITEMS]
    return [each for item in items for each in _braces(raw[: braces.start()] + item + raw[braces.end() :])]


_OPERATORS: Mapping[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.Pow: operator.pow,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def evaluate(expression: str) -> int:
    """Return the value of an expression of integers, whose division truncates.

    Raises:
        ValueError: It is not such an expression.
    """
    text = expression.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    text = re.sub(r"!(?!=)", " not ", text)
    return int(_value(ast.parse(text.strip(), mode="eval").body))


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(item)) for item in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    operation: ast.AST = node
    operands: list[ast.expr] = []
    if isinstance(node, ast.UnaryOp):
        operation, operands = node.op, [node.operand]
    elif isinstance(node, ast.BinOp):
        operation, operands = node.op, [node.left, node.right]
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        operation, operands = node.ops[0], [node.left, *node.comparators]
    if type(operation) in _OPERATORS:
        return int(_OPERATORS[type(operation)](*map(_value, operands)))
    raise ValueError(f"{type(node).__name__} is not part of an arithmetic expression")
