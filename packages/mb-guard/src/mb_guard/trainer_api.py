"""What the trainer imports from mb_guard beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_guard.cli import diagnosis as diagnosis

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
