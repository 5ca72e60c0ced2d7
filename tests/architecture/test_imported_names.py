"""Each import of our packages names what exists: in sources, tests, examples and code blocks, also within functions."""

import ast
import re
from functools import cache
from pathlib import Path

from house import SOURCES

ROOT = Path(__file__).parents[2]
OURS = tuple(folder.name for folder in SOURCES)


def code_of(path: Path) -> list[str]:
    """Return the code of a module, or of each block of a page; of a block of examples, their input."""
    if path.suffix == ".py":
        return [path.read_text()]
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return ["\n".join(re.findall(r"^(?:>>>|\.\.\.) ?(.*)", each, re.MULTILINE)) or each for each in blocks]


@cache
def fails(statement: str) -> bool:
    """Return whether an import fails, but for an optional dependency that is not installed."""
    try:
        exec(statement, {})
    except ImportError as error:
        return (error.name or "").startswith(OURS)
    return False


def test_each_imported_name_exists():
    paths = [path for top in ("meta", "packages", "tests") for path in (ROOT / top).rglob("*")]
    imports = [
        (path.relative_to(ROOT), ast.unparse(node))
        for path in paths
        if path.suffix in (".py", ".md")
        for node in ast.walk(ast.parse("\n".join(code_of(path))))
        if isinstance(node, ast.Import | ast.ImportFrom) and re.match(r"(from|import) mb_", ast.unparse(node))
    ]
    assert [(path, statement) for path, statement in imports if fails(statement)] == []
