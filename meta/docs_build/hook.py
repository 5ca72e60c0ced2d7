"""MkDocs hook: adds the generated pages of the reference to the site.

The pages exist in the build only. Rules, sections and commands are read from the packages, which import without
torch; the API pages name the public objects, whose docstrings mkdocstrings reads from the sources.
"""

from collections.abc import Callable, Mapping

from api_pages import api_pages
from command_pages import command_pages
from copied_code import mark_prompts
from fault_pages import fault_pages
from field_pages import field_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from recipe_pages import recipe_pages
from rule_pages import rule_pages
from source_pages import rewrite_links, source_pages

GENERATORS: tuple[Callable[[], Mapping[str, str]], ...] = (
    *(api_pages, field_pages, rule_pages, fault_pages, command_pages),
    *(recipe_pages, source_pages),
)
"""Each returns the pages of a part of the reference: path under `docs/` to text."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the files of the site."""
    for generate in GENERATORS:
        for path, text in generate().items():
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to source files lead to their pages, and the copy button copy code without prompts."""
    return mark_prompts(rewrite_links(markdown, page.file.src_uri))
