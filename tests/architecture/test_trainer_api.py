"""What the trainer imports from each package beyond its root: a change of these names is a change for the trainer.

The version ranges of the packages in the trainer's pyproject.toml hold for the public names and for these.
"""

import ast
import json
from pathlib import Path

from house import PACKAGES

import mb_trainer

GOLDEN = Path(__file__).parent / "trainer_api.json"
TRAINER = Path(mb_trainer.__file__).parent


def imported_names(source: str) -> list[tuple[str, str]]:
    """Return module and name of each `from module import name`, and each `import module` with an empty name."""
    tree = ast.walk(ast.parse(source))
    return [
        (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else (alias.name, "")
        for node in tree
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]


def trainer_api() -> dict[str, list[str]]:
    """Return the names that the trainer imports from modules below the roots of the packages, by module."""
    roots = {package.module for package in PACKAGES} - {"mb_schema"}
    api: dict[str, set[str]] = {}
    for file in sorted(TRAINER.rglob("*.py")):
        for module, name in imported_names(file.read_text()):
            if module.partition(".")[0] in roots and "." in module:
                api.setdefault(module, set()).update([name] if name else [])
    return {module: sorted(names) for module, names in sorted(api.items())}


def test_the_trainer_imports_what_was_agreed():
    """After a change that is meant: python tests/architecture/test_trainer_api.py."""
    assert trainer_api() == json.loads(GOLDEN.read_text())


def test_imports_of_every_form_are_found():
    source = "import mb_a.b\nfrom mb_a.c import d as e\ndef f():\n    from mb_a import g\n"
    assert imported_names(source) == [("mb_a.b", ""), ("mb_a.c", "d"), ("mb_a", "g")]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(trainer_api(), indent=1) + "\n")
