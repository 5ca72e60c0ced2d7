"""Statements of a shell script: the part of the grammar of bash that job scripts use."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mb_config.megatron_lm.flag_table import MegatronFlagError

_META = " \t\n;&|<>()"
_ARRAY = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]]*)\])?(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"\$\w+")
_ANSI = re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL)
_HERE = re.compile(r"<<(-?)(?!<)[ \t]*(['\"]?)([\w.\\-]+)\2")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>&|<&|>\||<<<|<>|>|<)&?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HereDocument:
    """Lines that a command reads from the script."""

    body: str
    quoted: bool
    """True if variables are not expanded."""


@dataclass(slots=True, kw_only=True)
class SimpleCommand:
    """A command with the assignments before it, as unexpanded words; `[[ ... ]]` and `((...))` are commands too."""

    words: list[str] = field(default_factory=list)
    documents: list[HereDocument] = field(default_factory=list)
    input: str | None = None
    """Word whose value is the input, of `<<< WORD`, `< FILE` and `< <(COMMAND)`; None: a here-document, or none."""
    redirected: bool = False
    """True if what it prints goes to a file or to the standard error."""


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """Commands whose outputs are inputs of the next."""

    parts: "list[Statement]"
    negated: bool = False


@dataclass(slots=True, kw_only=True)
class AndOr:
    """A statement that runs if the one before it succeeded (`&&`) or failed (`||`)."""

    left: "Statement"
    operator: str
    right: "Statement"


@dataclass(slots=True, kw_only=True)
class If:
    """Branches with their conditions, and the statements of `else`."""

    branches: "list[tuple[list[Statement], list[Statement]]]"
    otherwise: "list[Statement]"


@dataclass(slots=True, kw_only=True)
class Case:
    """A word, and the statements of each list of patterns."""

    word: str
    arms: "list[tuple[list[str], list[Statement]]]"


@dataclass(slots=True, kw_only=True)
class For:
    """A loop over words; None: over the arguments of the script."""

    name: str
    words: list[str] | None
    body: "list[Statement]"


@dataclass(slots=True, kw_only=True)
class While:
    """A loop that ends with its condition; `until` ends as it becomes true."""

    condition: "list[Statement]"
    body: "list[Statement]"
    until: bool = False


@dataclass(slots=True, kw_only=True)
class Group:
    """Statements in braces or parentheses."""

    body: "list[Statement]"
    subshell: bool = False
    """True for parentheses: what the statements set ends with them."""


@dataclass(slots=True, kw_only=True)
class Redirected:
    """A compound statement, and the input that its commands read."""

    statement: "Statement"
    source: SimpleCommand
    """A command without words, with the input."""


@dataclass(slots=True, kw_only=True)
class Function:
    """Definition of a function."""

    name: str
    body: "list[Statement]"


Statement = SimpleCommand | Pipeline | AndOr | If | Case | For | While | Group | Function | Redirected

_CLOSING = {"then", "else", "elif", "fi", "do", "done", "esac", "}", ")", ";;"}


def parse_script(text: str) -> list[Statement]:
    """Return the statements of a script.

    Raises:
        MegatronFlagError: A quotation or a parenthesis is not closed, or the text is not a script of this grammar.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    statements = reader.statements()
    if reader.position < len(reader.text):
        line = reader.text.count("\n", 0, reader.position) + 1
        raise MegatronFlagError(f"line {line}: unexpected {reader.peek_word()!r}. The script cannot be read.")
    return statements


def skip_quotation(text: str, start: int) -> int:
    """Return the position after the quotation, substitution, or escaped character that begins at `start`.

    Raises:
        MegatronFlagError: It is not closed.
    """
    opening = text[start]
    if opening == "\\":
        return min(start + 2, len(text))
    if text.startswith("$'", start):
        found = _ANSI.match(text, start)
        return _closed(-1 if found is None else found.end(), text, start)
    if text.startswith('$"', start):
        return skip_quotation(text, start + 1)
    if opening in "'`":
        end = text.find(opening, start + 1)
        while opening == "`" and end > 0 and text[end - 1] == "\\":
            end = text.find(opening, end + 1)
        return _closed(end, text, start) + 1
    closing = {'"': '"', "$(": ")", "${": "}"}[opening if opening == '"' else text[start : start + 2]]
    position, depth = start + len(closing) + (opening == "$"), 0
    while position < len(text):
        character = text[position]
        if character == closing and not depth:
            return position + 1
        opens = "\\`" + ('"' if closing != '"' else "") + ("'" if closing == ")" else "")
        substitutes = character == "$" and text[position + 1 : position + 2] in ("(", "{")
        if character in opens or substitutes:
            position = skip_quotation(text, position)
        else:
            depth += (character == "(" and closing == ")") - (character == closing)
            position += 1
    return _closed(-1, text, start)


def expression_parts(text: str, start: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the parts of the regular expression after `=~`, and True for those that are quoted, up to a blank."""
    while start < len(text) and not text[start].isspace():
        quoted = text[start] in "'\"\\"
        if quoted or text[start] == "`" or text.startswith(("$(", "${"), start):
            end = skip_quotation(text, start)
        else:
            name = _NAME.match(text, start)
            end = start + 1 if name is None else name.end()
        yield text[start:end], quoted
        start = end


def _closed(end: int, text: str, start: int) -> int:
    if end < 0:
        line = text.count("\n", 0, start) + 1
        raise MegatronFlagError(
            f"the arguments cannot be split into words: line {line}: {text[start]} is not closed."
        )
    return end


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.open_documents: list[tuple[SimpleCommand, str, bool, bool]] = []

    def statements(self) -> list[Statement]:
        """Read statements up to the end of a compound command, which is not read."""
        found: list[Statement] = []
        while True:
            self.skip_separators()
            word = self.peek_word()
            if word is None or word in _CLOSING:
                return found
            found.append(self.and_or())

    def and_or(self) -> Statement:
        left = self.pipeline()
        while (operator := self.take(r"[ \t]*(&&|\|\|)")) is not None:
            self.skip_newlines()
            left = AndOr(left=left, operator=operator.strip(), right=self.pipeline())
        return left

    def pipeline(self) -> Statement:
        negated = self.take_word("!")
        parts = [self.command()]
        while self.take(r"[ \t]*\|&?(?!\|)") is not None:
            self.skip_newlines()
            parts.append(self.command())
        return parts[0] if len(parts) == 1 and not negated else Pipeline(parts=parts, negated=negated)

    def command(self) -> Statement:
        self.skip_blanks()
        word = self.peek_word()
        compound: Mapping[str | None, Callable[[], Statement]] = {
            "if": self.if_statement,
            "case": self.case_statement,
            "for": self.for_statement,
            "while": self.while_statement,
            "until": self.while_statement,
            "{": lambda: self.group("}"),
            "(": lambda: self.group(")"),
            "function": self.function,
        }
        if word == "(" and self.text.startswith("((", self.position):
            return self.redirected(SimpleCommand(words=[self.arithmetic()]))
        if word in compound:
            return self.redirected(compound[word]())
        name = re.compile(r"([\w:./-]+)[ \t]*\([ \t]*\)").match(self.text, self.position)
        if name is not None:
            self.position = name.end()
            self.skip_newlines()
            return Function(name=name[1], body=[self.command()])
        return self.simple_command()

    def redirected(self, statement: Statement) -> Statement:
        """Read the redirections after a compound command."""
        holder, opened = SimpleCommand(), len(self.open_documents)
        while self.redirection(holder):
            pass
        if holder.input is None and len(self.open_documents) == opened:
            return statement
        return Redirected(statement=statement, source=holder)

    def simple_command(self) -> SimpleCommand:
        command = SimpleCommand()
        while True:
            self.skip_blanks()
            if self.redirection(command):
                continue
            if command.words and command.words[0] == "[[" and command.words[-1] == "=~":
                parts = [part for part, _ in expression_parts(self.text, self.position)]
                command.words.append("".join(parts))
                self.position += len(command.words[-1])
                continue
            if command.words and command.words[0] == "[[" and command.words[-1] != "]]":
                operator = self.take(r"\|\||&&|[<>()]")
                if operator is not None:
                    command.words.append(operator)
                    continue
                self.skip_newlines()
            word = self.word()
            if word is None:
                if not command.words and not command.documents and self.position < len(self.text):
                    self.position += 1  # a character without meaning here
                return command
            command.words.append(word)

    def redirection(self, command: SimpleCommand) -> bool:
        self.skip_blanks()
        if command.words and command.words[0] == "[[" and command.words[-1] != "]]":
            return False
        here = _HERE.match(self.text, self.position)
        if here is not None:
            self.position = here.end()
            quoted = bool(here[2]) or "\\" in here[3]
            self.open_documents.append((command, here[3].replace("\\", ""), quoted, bool(here[1])))
            return True
        match = _REDIRECTION.match(self.text, self.position)
        if match is None or self.text.startswith(("<(", ">("), self.position):
            return False
        self.position = match.end()
        self.skip_blanks()
        word = self.word() or ""
        if match[1] in ("", "0") and match[2] in ("<", "<<<"):
            command.input = (
                word if match[2] == "<<<" else f'"${word[1:]}"' if word[:2] == "<(" else f'"$(< {word})"'
            )
        command.redirected |= match[1] in ("", "1", "&") and match[2].startswith(">")
        return True

    def word(self) -> str | None:
        """Read a word as it is written; None at its end."""
        start = self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            following = self.text[self.position + 1 : self.position + 2]
            if character in "'\"`\\" or (character == "$" and following and following in "({'\""):
                self.position = skip_quotation(self.text, self.position)
            elif character == "(" and _ARRAY.fullmatch(self.text[start : self.position]):
                self.position += 1
                for _ in self.array_words():
                    pass
            elif character in "<>" and following == "(":
                rest = f"{self.text[: self.position]}${self.text[self.position + 1 :]}"
                self.position = skip_quotation(rest, self.position)
            elif character in _META:
                break
            else:
                self.position += 1
        return self.text[start : self.position] or None

    def array_words(self) -> Iterator[str]:
        """Yield the words of a list up to its closing parenthesis, which is read."""
        while True:
            self.skip_newlines()
            if self.position >= len(self.text):
                _closed(-1, "(", 0)
            if self.text[self.position] == ")":
                self.position += 1
                return
            word = self.word()
            if word is None:
                self.position += 1
                continue
            yield word

    def arithmetic(self) -> str:
        start = self.position
        self.position = skip_quotation(f"{self.text[:start]}${self.text[start:]}", start) - 1
        return self.text[start : self.position]

    def if_statement(self) -> If:
        branches, otherwise, keyword = [], [], "if"
        while keyword in ("if", "elif"):
            self.take_word(keyword)
            condition = self.statements()
            self.expect("then")
            branches.append((condition, self.statements()))
            keyword = self.peek_word() or "fi"
        if self.take_word("else"):
            otherwise = self.statements()
        self.expect("fi")
        return If(branches=branches, otherwise=otherwise)

    def case_statement(self) -> Case:
        self.take_word("case")
        self.skip_blanks()
        word = self.word() or ""
        self.skip_newlines()
        self.expect("in")
        arms = []
        while True:
            self.skip_newlines()
            if self.peek_word() in (None, "esac"):
                break
            self.take(r"\(")
            patterns = []
            while True:
                self.skip_blanks()
                patterns.append(self.word() or "")
                self.skip_blanks()
                if self.take(r"\|") is None:
                    break
            if self.take(r"\)") is None:
                break
            arms.append((patterns, self.statements()))
            self.take(r";;&?|;&")
        self.expect("esac")
        return Case(word=word, arms=arms)

    def for_statement(self) -> For:
        self.take_word("for")
        self.skip_blanks()
        if self.text.startswith("((", self.position):
            self.arithmetic()
            name, words = "", [""]  # a counting loop: its body is read once
        else:
            name, words = self.word() or "", None
            self.skip_newlines()
            if self.take_word("in"):
                words = []
                self.skip_blanks()
                while (word := self.word()) is not None:
                    words.append(word)
                    self.skip_blanks()
        self.skip_separators()
        self.expect("do")
        body = self.statements()
        self.expect("done")
        return For(name=name, words=words, body=body)

    def while_statement(self) -> While:
        until = not self.take_word("while") and self.take_word("until")
        condition = self.statements()
        self.expect("do")
        body = self.statements()
        self.expect("done")
        return While(condition=condition, body=body, until=until)

    def group(self, end: str) -> Group:
        self.position += 1
        body = self.statements()
        self.expect(end)
        return Group(body=body, subshell=end == ")")

    def function(self) -> Function:
        self.take_word("function")
        self.skip_blanks()
        name = self.word() or ""
        self.take(r"[ \t]*\([ \t]*\)")
        self.skip_newlines()
        return Function(name=name, body=[self.command()])

    def peek_word(self) -> str | None:
        """Return the next word, or the operator, without reading it."""
        self.skip_blanks()
        operator = re.compile(r";;|[()]").match(self.text, self.position)
        if operator is not None:
            return operator[0]
        start = self.position
        word = self.word()
        self.position = start
        return word

    def take_word(self, wanted: str) -> bool:
        if self.peek_word() != wanted:
            return False
        self.position += len(wanted)
        return True

    def expect(self, wanted: str) -> None:
        self.skip_separators()
        if not self.take_word(wanted):
            line = self.text.count("\n", 0, self.position) + 1
            raise MegatronFlagError(f"line {line}: {wanted} is missing. The script cannot be read.")

    def take(self, pattern: str) -> str | None:
        match = re.compile(pattern).match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match[0]

    def skip_blanks(self) -> None:
        """Skip blanks, continued lines, and a comment."""
        self.take(r"(?:[ \t]|\\\n)*")
        before = self.text[self.position - 1 : self.position]
        if self.text.startswith("#", self.position) and (not before or before in _META):
            self.take(r"#[^\n]*")

    def skip_newlines(self) -> None:
        while True:
            self.skip_blanks()
            if not self.text.startswith("\n", self.position):
                return
            self.position += 1
            self.read_documents()

    def skip_separators(self) -> None:
        while True:
            self.skip_newlines()
            if self.text.startswith(";;", self.position) or not self.text.startswith(
                (";", "&"), self.position
            ):
                return
            self.position += 1

    def read_documents(self) -> None:
        """Read the here-documents that begin on this line."""
        documents, self.open_documents = self.open_documents, []
        for command, end, quoted, indented in documents:
            lines = []
            while self.position < len(self.text):
                stop = self.text.find("\n", self.position)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.position : stop]
                self.position = min(stop + 1, len(self.text))
                if (line.lstrip("\t") if indented else line) == end:
                    self.position -= self.position > 0 and self.text[self.position - 1] == "\n"
                    break
                lines.append(line)
            command.documents.append(HereDocument(body="\n".join(lines), quoted=quoted))


def array_words(text: str) -> list[str]:
    """Return the words of a list, `(a "b c" $D)`."""
    reader = _Reader(text)
    reader.position = 1
    return [*reader.array_words()]
