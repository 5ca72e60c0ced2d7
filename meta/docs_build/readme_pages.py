"""Pages of packages whose documentation is in their README."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "meta" / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)")


def readme_pages() -> dict[str, str]:
    """Return a page for each package that has none in the documentation."""
    packages = (path.name for path in sorted((ROOT / "packages").glob("mb-*")))
    return {
        f"packages/{package}.md": readme_page(package)
        for package in packages
        if not (DOCS / "packages" / f"{package}.md").exists()
    }


def readme_page(package: str) -> str:
    """Return the README of a package, with links that are relative to the page."""
    folder = ROOT / "packages" / package
    text = (folder / "README.md").read_text(encoding="utf-8")
    return LINK.sub(lambda found: f"]({relative_link(folder, found[1])}{found[2] or ''})", text)


def relative_link(folder: Path, link: str) -> str:
    """Return a link of a README as a link of its page."""
    target = (folder / link).resolve()
    if target.parent == ROOT / "packages":
        return f"{target.name}.md"
    return f"../../../{target.relative_to(ROOT).as_posix()}"
