"""Code blocks with prompts, so that the copy button of the site copies the code alone.

The site hides prompts and output while it copies (`assets/site.css`), which it finds by the classes of the languages
`pycon` and `console`. In the sources a doctest is `python`, as other readers of Markdown expect it.
"""

import re

_SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
_SHELL = re.compile(r"^```(?:text|sh)?\n(?=\$ )", re.MULTILINE)


def mark_prompts(markdown: str) -> str:
    """Return a page whose blocks with prompts have the language of a session."""
    return _SHELL.sub("```console\n", _SESSION.sub("```pycon\n", markdown))
