"""Extension of griffe: docstrings are plain text with code in backticks, so that `<name>` is not HTML in them."""

import re
from typing import Any

from griffe import Extension, Object

CODE_OR_TAG = re.compile(r"(`+[^`]*`+)|<(?=[A-Za-z/])")


class PlainDocstrings(Extension):
    """Escapes the markup of HTML in docstrings, outside of code."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Escape the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = without_tags(obj.docstring.value)


def without_tags(text: str) -> str:
    """Return a text whose `<` outside of code begins no tag."""
    return CODE_OR_TAG.sub(lambda found: found[1] or "&lt;", text)
