"""Pages of the API: the public names of each package, with the signatures and docstrings of their sources."""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docstring_markup import without_tags

ROOT = Path(__file__).parents[2]
PACKAGES = (*sorted(path.name for path in (ROOT / "packages").glob("mb-*")), "mb-trainer")
KINDS = ("Functions", "Classes", "Protocols", "Constants", "Errors")

DOCUMENTED_ELSEWHERE = {"cli", "config", "rules"}
"""Modules whose content is among the commands, fields and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicName:
    """A public name of a package."""

    name: str
    """Name in the package."""
    path: str
    """Dotted path of the definition."""
    kind: str
    """One of `KINDS`."""
    summary: str
    """First line of the docstring."""


def api_pages() -> dict[str, str]:
    """Return a page for each package."""
    return {f"reference/api/{package}.md": api_page(package) for package in PACKAGES}


def api_page(package: str) -> str:
    """Return the page of a package: a table of all public names, then each with its documentation."""
    module = package.replace("-", "_")
    names = [find_name(home, name) for name, home in sorted(public_homes(module).items())]
    lines = [
        f"# API of {package}",
        "",
        f"The public names of `{module}`: `from {module} import ...`. {package_summary(module)}",
        "",
    ]
    groups = {kind: [name for name in names if name.kind == kind] for kind in KINDS}
    for kind, members in groups.items():
        if members:
            lines += ["", f"| {kind.lower()} | |", "|---|---|"]
            lines += [f"| {link(member)} | {cell(member.summary)} |" for member in members]
    modules = further_modules(package)
    if modules:
        lines += ["", "| further modules | |", "|---|---|"]
        lines += [f"| [`{path}`](#{path}) | {cell(module_summary(path))} |" for path in modules]
    for kind, members in groups.items():
        documented = [member for member in members if member.path.startswith(f"{module}.")]
        if documented:
            lines += ["", f"## {kind}", ""]
        for member in documented:
            lines += [f"::: {member.path}", "    options:", "      heading_level: 3", ""]
    for path in modules:
        lines += ["", f"## `{path}` {{#{path}}}", "", f"::: {path}", "    options:", "      heading_level: 3"]
        lines += ["      show_root_heading: false", "      show_root_toc_entry: false", ""]
    return "\n".join(lines)


def further_modules(package: str) -> list[str]:
    """Return the modules that the page of a package names as `mb_x.module`: they are imported by name."""
    page = ROOT / "meta" / "docs" / "packages" / f"{package}.md"
    if not page.exists():
        return []
    top = package.replace("-", "_")
    named = re.findall(rf"\b{top}\.[a-z_0-9.]*[a-z_0-9]", page.read_text(encoding="utf-8"))
    found = {longest_module(name) for name in named} - {""}
    return sorted(path for path in found if path.removeprefix(f"{top}.") not in DOCUMENTED_ELSEWHERE)


def longest_module(path: str) -> str:
    """Return the module that a dotted path begins with: a file, not a package."""
    while path and not file_of(path).is_file():
        path = path.rpartition(".")[0]
    return "" if file_of(path).name == "__init__.py" else path


def module_summary(path: str) -> str:
    """Return the first paragraph of a module's docstring."""
    return paragraph(ast.get_docstring(parse(path)) or "")


def link(member: PublicName) -> str:
    """Return a name as a link to its documentation."""
    return f"[`{member.name}`][{member.path}]" if member.path else f"`{member.name}`"


def package_summary(module: str) -> str:
    """Return the first paragraph of a package's docstring."""
    return paragraph(ast.get_docstring(parse(module)) or "")


def public_homes(module: str) -> dict[str, str]:
    """Return the public names of a package with the modules that define them."""
    homes: dict[str, str] = importlib.import_module(module)._HOMES
    return homes


def find_name(path: str, name: str) -> PublicName:
    """Return a public name of a module, following imports to the definition; its path is empty if it is computed."""
    for node, following in with_following(parse(path).body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            summary = ast.get_docstring(node) or ""
            return PublicName(
                name=name, path=f"{path}.{name}", kind=kind_of(node), summary=paragraph(summary)
            )
        if isinstance(node, ast.FunctionDef) and node.name == name:
            summary = ast.get_docstring(node) or ""
            return PublicName(name=name, path=f"{path}.{name}", kind="Functions", summary=paragraph(summary))
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in assigned_names(node):
            summary = docstring_of(following)
            return PublicName(name=name, path=f"{path}.{name}", kind="Constants", summary=paragraph(summary))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mb_"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    found = find_name(node.module or "", alias.name)
                    return PublicName(name=name, path=found.path, kind=found.kind, summary=found.summary)
    return PublicName(name=name, path="", kind="Constants", summary=f"Computed by `{path}`.")


def kind_of(node: ast.ClassDef) -> str:
    """Return the kind of a class, by its name and bases."""
    if node.name.endswith("Error") or node.name == "RestartAbort":
        return "Errors"
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return "Protocols" if "Protocol" in bases else "Classes"


def assigned_names(node: ast.Assign | ast.AnnAssign) -> set[str]:
    """Return the names that an assignment binds."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def docstring_of(node: ast.stmt | None) -> str:
    """Return the text of a statement that is a string."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""


def with_following(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Yield each statement with the next one."""
    yield from zip(body, [*body[1:], None], strict=True)


def parse(module: str) -> ast.Module:
    """Return the syntax tree of a module of this repository."""
    return ast.parse(file_of(module).read_text(encoding="utf-8"))


def file_of(module: str) -> Path:
    """Return the file of a module of this repository, which may not exist."""
    top = module.partition(".")[0]
    package = "mb-trainer" if top == "mb_trainer" else top.replace("_", "-")
    source = (ROOT / "meta" if package == "mb-trainer" else ROOT / "packages" / package) / "src"
    file = source.joinpath(*module.split("."))
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


def paragraph(text: str) -> str:
    """Return the first paragraph of a text in one line."""
    return " ".join(text.strip().partition("\n\n")[0].split())


def rule_link(name: str, package: str, start: str = ".") -> str:
    """Return a link to a rule."""
    return f"[{name}]({start}/{package}.md#{name})".replace("(./", "(")


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return without_tags(text).replace("|", "\\|").replace("\n", " ")
