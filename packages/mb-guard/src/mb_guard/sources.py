"""Source text of a function of another library, found without importing it."""

import hashlib
import importlib.util
import inspect
import re
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path


def installed_hash(module: str, target: str) -> str | None:
    """Return the `source_hash` of an installed function; None if the module or the function does not exist."""
    path = module_file(module)
    return (
        None
        if path is None or path.suffix != ".py"
        else source_hash(path.read_text(encoding="utf-8"), target)
    )


def source_hash(text: str, target: str) -> str | None:
    """Return the first 16 hexadecimal digits of the SHA-256 of a function's source, from the line of its `def` on.

    Args:
        text: the source of its module.
        target: dotted path inside the module, such as `TopKRouter.forward`.
    """
    source = _function_source(text.splitlines(keepends=True), target.split("."))
    return None if source is None else hashlib.sha256(source.encode()).hexdigest()[:16]


def _function_source(lines: Sequence[str], path: Sequence[str]) -> str | None:
    first, last, indent = 0, len(lines), ""
    for number, name in enumerate(path):
        definition = re.compile(rf"{indent}(async\s+def|def|class)\s+{name}\b")
        first = next((at for at in range(first, last) if definition.match(lines[at])), last)
        if first == last:
            return None
        if number < len(path) - 1:
            after = re.compile(rf"{indent}(class|def|@)")
            last = next((at for at in range(first + 1, last) if after.match(lines[at])), last)
            first, indent = first + 1, indent + "    "
    block = [line.rstrip() for line in inspect.getblock(lines[first:last])]
    # versions of Python differ in whether comments behind the last statement belong to the block
    while block and (not block[-1] or block[-1].lstrip().startswith("#")):
        block.pop()
    return "\n".join(block)


def module_file(name: str) -> Path | None:
    """Return the file that an import of a module would execute, importing at most a namespace package."""
    top, *rest = name.split(".")
    spec = _find(top)
    if spec is not None and spec.origin is None and rest:  # the namespace package `megatron`
        spec = _find(f"{top}.{rest[0]}")
        rest = rest[1:]
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def defines(module: str, name: str) -> bool:
    """Return whether a module's source file defines or imports a name at any depth, or has a submodule of that name.

    Names of extension modules are not known.
    """
    return _defines(module, name, visited=set())


def _defines(module: str, name: str, *, visited: set[str]) -> bool:
    path = module_file(module)
    if module in visited or path is None or path.suffix != ".py":
        return False
    visited.add(module)  # modules may import each other
    if path.name == "__init__.py" and module_file(f"{module}.{name}") is not None:
        return True
    text = path.read_text(encoding="utf-8")
    binding = re.compile(
        rf"^\s*(?:class|def)\s+{name}\b|^\s*{name}\b[^=\n]*=[^=]|^\s*(?:from\s.*)?import\s.*\b{name}\b|^\s+{name},?$",
        re.MULTILINE,
    )
    if binding.search(text):
        return True
    return any(
        _defines(_absolute(found[1], module, path), name, visited=visited)
        for found in re.finditer(r"^\s*from\s+(\S+)\s+import\s+\*", text, re.MULTILINE)
    )


def _absolute(name: str, module: str, path: Path) -> str:
    """Return the absolute name of a module that is named relative to another."""
    levels = len(name) - len(name.lstrip("."))
    if not levels:
        return name
    parents = module.split(".")
    keep = len(parents) - levels + (path.name == "__init__.py")
    return ".".join([*parents[:keep], *filter(None, [name.lstrip(".")])])
