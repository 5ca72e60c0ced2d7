"""Conditions of a shell script: `[ ... ]`, `[[ ... ]]` and `test`."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mb_config.megatron_lm.shell.expansion import MARK, evaluate, is_empty, marked_names

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def decide(words: Sequence[str], *, patterns: bool) -> bool | None:
    """Return whether a condition holds; None if it depends on a file, or on a value that is not known.

    A variable that is not set counts as empty.

    Args:
        words: Words between the brackets.
        patterns: True for `[[ ... ]]`, whose right side of `==` is a pattern.
    """
    return _Condition([*words], patterns=patterns).either()


class _Condition:
    def __init__(self, words: list[str], *, patterns: bool) -> None:
        self.words, self.patterns = words, patterns

    def either(self) -> bool | None:
        return self.chain(("||", "-o"), self.both, decisive=True)

    def both(self) -> bool | None:
        return self.chain(("&&", "-a"), self.single, decisive=False)

    def chain(
        self, signs: tuple[str, str], part: Callable[[], bool | None], *, decisive: bool
    ) -> bool | None:
        """Return the result of parts between signs: `decisive` decides, an unknown part does not."""
        result = part()
        while self.words[:1] and self.words[0] in signs:
            self.words.pop(0)
            results = (result, part())
            result = decisive if decisive in results else None if None in results else not decisive
        return result

    def single(self) -> bool | None:
        if not self.words:
            return False
        if self.words[0] == "!" and len(self.words) > 1:
            self.words.pop(0)
            result = self.single()
            return None if result is None else not result
        if self.words[0] == "(":
            self.words.pop(0)
            result = self.either()
            if self.words[:1] == [")"]:
                self.words.pop(0)
            return result
        if re.fullmatch(r"-[a-zA-Z]", self.words[0]) and (
            len(self.words) == 2 or self.words[2:3] in (["&&"], ["||"], [")"], ["-a"], ["-o"])
        ):
            return self.about(self.words.pop(0), self.words.pop(0))
        if len(self.words) >= 3 and self.words[1] in {*_NUMBERS, *_TEXTS, "=~"}:
            left, sign, right = self.words.pop(0), self.words.pop(0), self.words.pop(0)
            return self.comparison(left, sign, right)
        return _is_set(self.words.pop(0))

    @staticmethod
    def about(sign: str, value: str) -> bool | None:
        if sign not in ("-n", "-z"):
            return None  # a file of another machine
        found = _is_set(value)
        return None if found is None else found == (sign == "-n")

    def comparison(self, left: str, sign: str, right: str) -> bool | None:
        if any(name.startswith("$") for name in marked_names(left + right)):
            return None
        left, right = MARK.sub("", left), MARK.sub("", right)
        if sign in _NUMBERS and self.patterns:
            values = [_number(text) for text in (left, right)]
            return None if None in values else _NUMBERS[sign](*values)
        if sign in _NUMBERS:
            numbers = all(re.fullmatch(r"[+-]?\d+", text) for text in (left, right))
            return numbers and _NUMBERS[sign](int(left), int(right))
        if sign == "=~":
            return _matches(right, left)
        if self.patterns and sign in ("=", "==", "!="):
            return fnmatchcase(left, right) == (sign != "!=")
        return _TEXTS[sign](left, right)


def _number(text: str) -> Any:
    """Return the value of an operand of `[[`, an arithmetic expression that is 0 if it is empty; None if not known."""
    try:
        return evaluate(text) if text.strip() else 0
    except (SyntaxError, ValueError, ZeroDivisionError, TypeError):
        return None


def _matches(expression: str, text: str) -> bool | None:
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None


def _is_set(value: str) -> bool | None:
    if is_empty(value):
        return False
    return True if MARK.sub("", value) else None
