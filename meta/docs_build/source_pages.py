"""Pages with source files that the documentation links to, so that such links also work without a code host."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "meta" / "docs"

LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]+)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".md": "markdown"}


class BrokenLinkError(ValueError):
    """A link of a page names a file that the repository does not have."""


def source_pages() -> dict[str, str]:
    """Return a page for each file or folder outside of the documentation that a page links to."""
    pages = {
        page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")
    }
    linked = {target for page, text in pages.items() for target in outside_links(page, text)}
    return {page_path(target): source_page(target) for target in sorted(linked)}


def outside_links(page: str, text: str) -> Iterator[str]:
    """Yield the paths in the repository of a page's links that leave the documentation."""
    for found in LINK.finditer(text):
        target = outside_target(page, found[1])
        if target is not None:
            yield target


def outside_target(page: str, link: str) -> str | None:
    """Return the path in the repository of a link that leaves the documentation; None for others.

    Raises:
        BrokenLinkError: there is no such file.
    """
    path = (DOCS / page).parent.joinpath(link).resolve()
    if path.is_relative_to(DOCS):
        return None
    if not path.exists() or not path.is_relative_to(ROOT):
        raise BrokenLinkError(f"{page}: links to {link}, which does not exist")
    return path.relative_to(ROOT).as_posix()


def rewrite_links(text: str, page: str) -> str:
    """Return a page whose links to source files lead to their pages."""

    def replace(found: re.Match[str]) -> str:
        target = outside_target(page, found[1])
        if target is None:
            return found[0]
        up = "../" * len(PurePosixPath(page).parent.parts)
        return f"]({up}{page_path(target)})"

    return LINK.sub(replace, text)


def page_path(target: str) -> str:
    """Return the path of the page of a source file."""
    return f"sources/{target.strip('/').replace('/', '.')}.md"


def source_page(target: str) -> str:
    """Return the page of a source file, or of all files of a folder."""
    lines = [f"# {PurePosixPath(target).name}", "", f"`{target}`", ""]
    for file in files_of(target):
        if file != target:
            lines += [f"## {PurePosixPath(file).relative_to(target)}", ""]
        text = (ROOT / file).read_text(encoding="utf-8").replace("````", "` ` ` `")
        lines += [f"````{LANGUAGES.get(Path(file).suffix, 'text')}", text.rstrip(), "````", ""]
    return "\n".join(lines)


def files_of(target: str) -> Iterable[str]:
    """Return the committed files of a path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(listed.stdout.splitlines())
