"""Write bridge_names.txt, with which test_bridge.py holds the tables of `mb_trainer.bridge`.

`python bridge_names.py DIR` reads the sources of Megatron-Bridge, the folder `megatron/bridge` of its wheel, without
importing them: a line for each module, with the public names that it defines, and in a package those that it exports.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")


def public_names(file: Path) -> Iterator[str]:
    """Yield the public names of a module."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name() as target):
                yield target.id
            case ast.ImportFrom(module=str(module)) if file.stem == "__init__" and module.startswith(
                "megatron.bridge"
            ):
                yield from (alias.asname or alias.name for alias in node.names)


def lines(folder: Path) -> Iterator[str]:
    """Yield the line of each module."""
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = dict.fromkeys(name for name in public_names(file) if not name.startswith(("_", "*")))
        yield f"{module or '.'}: {' '.join(sorted(names))}".rstrip()


if __name__ == "__main__":
    FILE.write_text("\n".join(lines(Path(sys.argv[1]))) + "\n")
