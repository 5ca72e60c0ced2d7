"""Defaults of parameters are constants: `help()` and `inspect.signature` print them, and each call shares them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import SOURCES

FUNCTIONS = {
    "time.monotonic",
    "time.perf_counter",
    "time.time",
    "time.sleep",
    "datetime.now",
    "gc.collect",
    "torch.cuda.empty_cache",
    "signal.SIGTERM",
}
"""Attributes of other modules that are functions or members of an enumeration: their text holds no state."""


def mutable_names(tree: ast.Module) -> set[str]:
    """Return the names that a module assigns a dictionary, list or set, or the process environment."""
    assigned = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value]
    return {
        target.id
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and is_mutable(node.value)
    }


def is_mutable(value: ast.expr) -> bool:
    """Return whether an expression is written as a dictionary, list or set, or is the process environment."""
    displays = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    builders = ("dict(", "list(", "set(", "defaultdict(", "os.environ")
    return isinstance(value, displays) or ast.unparse(value).startswith(builders)


def is_constant(default: ast.expr, mutable: set[str]) -> bool:
    """Return whether a default is a constant, a name of one, a function, or an expression of constants."""
    match default:
        case ast.Constant():
            return True
        case ast.Lambda():
            return True
        case ast.Name(id=name):
            return name not in mutable
        case ast.Attribute():
            return ast.unparse(default) in FUNCTIONS
        case ast.UnaryOp(operand=operand):
            return is_constant(operand, mutable)
        case ast.BinOp(left=left, right=right):
            return is_constant(left, mutable) and is_constant(right, mutable)
        case ast.Tuple(elts=entries):
            return all(is_constant(entry, mutable) for entry in entries)
    return False


def defaults(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield (function, default) for all functions of a module, nested functions and lambdas included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    yield getattr(node, "name", "lambda"), default


def stateful_defaults(path: Path) -> list[str]:
    """Return the defaults of a file that hold state or are computed at import, as "function: expression"."""
    tree = ast.parse(path.read_text())
    mutable = mutable_names(tree)
    return [
        f"{path.name}: {name}: {ast.unparse(default)}"
        for name, default in defaults(tree)
        if not is_constant(default, mutable)
    ]


@pytest.mark.parametrize("folder", SOURCES, ids=lambda folder: folder.name)
def test_every_default_is_a_constant(folder: Path):
    assert [found for path in folder.rglob("*.py") for found in stateful_defaults(path)] == []


@pytest.mark.parametrize(
    "default", ["os.environ", "dict(a=1)", "[1]", "TABLE", "{**TABLE}", "(1, os.environ)", "now()"]
)
def test_a_default_that_holds_state_is_found(tmp_path, default):
    planted = tmp_path / "planted.py"
    planted.write_text(f"TABLE = {{}}\ndef f(a, b={default}):\n    return a, b\n")
    assert stateful_defaults(planted) == [f"planted.py: f: {default}"]
