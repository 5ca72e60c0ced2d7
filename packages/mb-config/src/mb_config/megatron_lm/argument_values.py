"""Values of Megatron-LM's arguments: the given ones, the defaults of the others, and texts that contain a value."""

from ast import Add, BinOp, Constant, List, Mult, Tuple, parse
from collections.abc import Mapping
from typing import Any

from mb_config.megatron_lm.flag_table import read_flags


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
        return _evaluate(parse(value, mode="eval").body)
    except (ValueError, SyntaxError, TypeError):
        return value


def _evaluate(node: Any) -> Any:
    """Return the value of a number, a list, or a sum or product of lists and numbers."""
    if isinstance(node, Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, List | Tuple):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, BinOp) and isinstance(node.op, Add):
        return _evaluate(node.left) + _evaluate(node.right)
    if isinstance(node, BinOp) and isinstance(node.op, Mult):
        return _evaluate(node.left) * _evaluate(node.right)
    raise ValueError(f"{type(node).__name__} is not a value")
