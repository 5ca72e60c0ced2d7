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
    return None if path is None else source_hash(path.read_text(), target)


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
