"""Replacement of lines in a function of another library, whose source is known."""

import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Any

from mb_guard.fault import Function


def rewritten(function: Function, *changes: tuple[str, str], **names: Any) -> Function:
    """Return a function with some texts replaced; `names`, which they may use, are added to the globals of its module.

    Raises:
        ValueError: a text to be replaced does not occur exactly once, or the function is wrapped in another.
    """
    if hasattr(function, "__wrapped__"):
        raise ValueError(
            f"{function.__qualname__}: is wrapped; patches that rewrite a function come before others"
        )
    source = getattr(function, "rewritten_source", None) or textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{function.__qualname__}: {old!r} occurs {source.count(old)} times, not once")
        source = source.replace(old, new)
    code = compile(source, inspect.getfile(function), "exec")
    body = next(
        each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == function.__name__
    )
    function.__globals__.update(names)
    result = FunctionType(
        body, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    result.__kwdefaults__, result.__doc__ = function.__kwdefaults__, function.__doc__
    result.__qualname__, result.__module__ = function.__qualname__, function.__module__
    result.rewritten_source = source  # type: ignore[attr-defined]  # for the next fault of the same function
    return result
