"""What the trainer imports from mb_verify beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_verify.cli.options import DrillOptions as DrillOptions
    from mb_verify.cli.options import ProofOptions as ProofOptions
    from mb_verify.cli.options import ReplayOptions as ReplayOptions
    from mb_verify.record.torch_state import conditions as conditions

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
