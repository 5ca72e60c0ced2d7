"""Expansion of the words of a shell script: quotations, variables, lists, arithmetic, and a few substitutions.

A variable that is not set, and a substitution `$(command)` that is not evaluated, become marks in the text, so that
the reader of a command knows which of its words depend on them.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from pathlib import PurePosixPath

from mb_config.megatron_lm.shell.syntax import skip_quotation

MARK = re.compile("\ue000([^\ue001]*)\ue001")
"""A value that is not known, with the name of the variable, or the text of the substitution after a `$`."""

_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_OPERATION = re.compile(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:")


_OF_THE_SHELL = ("0", "BASH_SOURCE", "?", "$", "!", "-")
"""Parameters that bash sets: the script, and numbers of processes and states, which are 0 here."""


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


class Words:
    """Words that grow by the pieces of an expansion."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.current: str | None = None

    def add(self, text: str) -> None:
        """Add quoted text."""
        self.current = (self.current or "") + text

    def split(self, text: str) -> None:
        """Add the value of a variable outside of quotations, whose blanks separate words."""
        for piece in re.findall(r"\s+|\S+", text):
            if piece.isspace():
                self.close()
            else:
                self.add(piece)

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
        self.assign: Callable[[str, str], None] = lambda _name, _value: None

    def words(self, raw: str) -> list[str]:
        """Return the words that a word of the script becomes: none, one, or several."""
        words = Words()
        self._scan(raw, words)
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
        self._scan_quoted(body, words)
        return words.current or ""

    def _scan(self, raw: str, words: Words, *, split: bool = True) -> None:
        position = 0
        while position < len(raw):
            character = raw[position]
            if character in "'\"`\\" or raw[position : position + 2] in ("$(", "${", "$'", '$"'):
                shift = raw[position : position + 2] in ("$'", '$"')
                end = skip_quotation(raw, position + shift)
                self._piece(raw[position + shift : end], words, split=split)
                position = end
            elif character == "$" and (name := _NAME.match(raw, position + 1)):
                self._parameter(name[0], words, quoted=False, split=split)
                position = name.end()
            else:
                words.add(character)
                position += 1

    def _piece(self, piece: str, words: Words, *, split: bool) -> None:
        if piece[0] == "'":
            words.add(piece[1:-1])
        elif piece[0] == "\\":
            words.add("" if piece == "\\\n" else piece[1:])
        elif piece[0] == '"':
            if '"${' not in piece or "[@]" not in piece:
                words.add("")
            self._scan_quoted(piece[1:-1], words)
        else:
            self._substitution(piece, words, quoted=False, split=split)

    def _scan_quoted(self, text: str, words: Words) -> None:
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\\" and text[position + 1 : position + 2] in ("$", "`", '"', "\\", "\n"):
                words.add("" if text[position + 1] == "\n" else text[position + 1])
                position += 2
            elif character == "`" or text[position : position + 2] in ("$(", "${"):
                end = skip_quotation(text, position)
                self._substitution(text[position:end], words, quoted=True, split=True)
                position = end
            elif character == "$" and (name := _NAME.match(text, position + 1)):
                self._parameter(name[0], words, quoted=True, split=True)
                position = name.end()
            else:
                words.add(character)
                position += 1

    def _substitution(self, piece: str, words: Words, *, quoted: bool, split: bool) -> None:
        if piece.startswith("${"):
            self._parameter(piece[2:-1], words, quoted=quoted, split=split)
            return
        if piece.startswith("$(("):
            value = self.arithmetic(piece[3:-2])
        else:
            value = self._command(piece[1:-1] if piece[0] == "`" else piece[2:-1])
        (words.add if quoted or not split else words.split)(value)

    def _parameter(self, body: str, words: Words, *, quoted: bool, split: bool) -> None:
        values, separate = self._values(body)
        if not split:
            words.add(" ".join(values))
        elif quoted:
            if separate:
                words.items(values)
            else:
                words.add(" ".join(values))
        else:
            for index, value in enumerate(values):
                if index:
                    words.close()
                words.split(value)

    def _values(self, body: str) -> tuple[list[str], bool]:
        """Return the values of `${body}`, and whether each is a word inside of quotations as well."""
        if body.startswith("#") and len(body) > 1:
            values, _ = self._values(body[1:])
            return [
                str(len(values) if re.search(r"\[[@*]\]$|^#[@*]$", body) else len("".join(values)))
            ], False
        if body.startswith("!"):
            pointed = "".join(self._values(body[1:])[0])
            return self._values(pointed) if re.fullmatch(r"\w+", pointed) else ([mark(body)], False)
        name = _NAME.match(body)
        if name is None:
            return [mark(f"${{{body}}}")], False
        rest = body[name.end() :]
        index = re.match(r"\[([^]]*)\]", rest)
        found = self._lookup(name[0], None if index is None else index[1])
        rest = rest[index.end() :] if index else rest
        separate = name[0] == "@" or (index is not None and index[1] == "@")
        is_list = name[0] in ("@", "*") or index is not None
        if found is not None and is_list and re.match(r":(?![-=+?])", rest):
            items = [self.script, *found] if name[0] in ("@", "*") else found
            return self._sublist(items, rest[1:]), separate
        return self._operate(name[0], found, rest), separate

    def _sublist(self, values: list[str], word: str) -> list[str]:
        """Return the values of `${A[@]:start:length}`."""
        start, _, length = word.partition(":")
        first = self._index(start.strip() or "0")
        return values[first : first + self._index(length) if length else None]

    def _lookup(self, name: str, index: str | None) -> list[str] | None:
        """Return the values of a parameter; None if it is not set."""
        if name in ("@", "*", "#"):
            self.uses_arguments = True
            return [str(len(self.arguments))] if name == "#" else [*self.arguments]
        if name in _OF_THE_SHELL:
            return [self.script if name in ("0", "BASH_SOURCE") else "0"]
        if name.isdigit() and name not in self.variables:
            return [self.arguments[int(name) - 1]] if int(name) <= len(self.arguments) else None
        value = self.variables.get(name, self.folder if name == "PWD" else None)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if index in ("@", "*"):
            return None if value is None else [*items]
        entry = None if index is None else self.variables.get(f"{name}[{self.text(index)}]")
        if isinstance(entry, str):
            return [entry]
        position = 0 if index is None else self._index(index)
        return [items[position]] if -len(items) <= position < len(items) else None

    def _index(self, text: str) -> int:
        value = self.arithmetic(text)
        return int(value) if re.fullmatch(r"-?\d+", value) else 0

    def _operate(self, name: str, found: list[str] | None, rest: str) -> list[str]:
        kind = _OPERATION.match(rest)
        operation, word = ("", "") if kind is None else (kind[0], rest[kind.end() :])
        unset = found is None or (":" in operation and all(is_empty(value) for value in found))
        if operation in ("-", ":-", "=", ":=") and unset:
            value = self.text(word)
            if "=" in operation:
                self.assign(name, value)
            return [value]
        if operation in ("+", ":+"):
            return [] if unset else [self.text(word)]
        if found is None:
            return [] if name in ("@", "*") else [mark(name)]
        if operation in ("", "-", ":-", "=", ":=", "?", ":?"):
            return found
        if operation == ":":
            return self._slice(found, word)
        return [
            value if MARK.search(value) else _edited(value, operation, self.text(word)) for value in found
        ]

    def _slice(self, values: list[str], word: str) -> list[str]:
        start, _, length = word.partition(":")
        first = self._index(start.strip() or "0")
        return [value[first : first + self._index(length) if length else None] for value in values]

    def _command(self, command: str) -> str:
        """Return the output of a few commands on paths; of another, the mark of an unknown value."""
        words: list[str] = []
        scanned = re.sub(r"\s*(2>|>|&>)\s*\S+", "", command.strip())
        parts = re.split(r"\s*(?:&&|;)\s*", scanned)
        if len(parts) == 2 and parts[1].split()[:1] == ["pwd"] and parts[0].split()[:1] == ["cd"]:
            scanned = "echo" + parts[0].removeprefix("cd")
        position = 0
        while position < len(scanned):
            piece = re.compile(r"\s+").match(scanned, position)
            if piece is not None:
                position = piece.end()
                continue
            start = position
            while position < len(scanned) and not scanned[position].isspace():
                opens = scanned[position] in "'\"`\\" or scanned[position : position + 2] in ("$(", "${")
                position = skip_quotation(scanned, position) if opens else position + 1
            words += self.words(scanned[start:position])
        options = [word for word in words[1:] if word.startswith("-") and not word[1:].isdigit()]
        values = [word for word in words[1:] if word not in options]
        output = _PATH_COMMANDS.get(words[0] if words else "")
        if words == ["pwd"]:
            return self.folder
        if output is None or len(values) != 1 or "|" in words:
            return mark(f"$({command.strip()})")
        return output(values[0])

    def arithmetic(self, expression: str) -> str:
        """Return the value of an arithmetic expression, or the marks of its unknown values."""
        text = self.text(expression.strip().replace('"', ""))
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
        found = self._lookup(name[0], None)
        return f"({found[0]})" if found and found[0].strip() else mark(name[0])


def _edited(value: str, operation: str, word: str) -> str:
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


_PATH_COMMANDS: Mapping[str, Callable[[str], str]] = {
    "dirname": lambda path: str(PurePosixPath(path).parent),
    "basename": lambda path: PurePosixPath(path).name,
    "readlink": lambda path: path,
    "realpath": lambda path: path,
    "echo": lambda text: text,
}

_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
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
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        value = _value(node.operand)
        return (
            -value
            if isinstance(node.op, ast.USub)
            else value
            if isinstance(node.op, ast.UAdd)
            else int(not value)
        )
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(item)) for item in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return int(_OPERATORS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError(f"{type(node).__name__} is not part of an arithmetic expression")
