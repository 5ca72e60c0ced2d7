"""What the trainer imports from mb_host beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_host.cpu.reproducibility import irreproducibility_reasons as irreproducibility_reasons
    from mb_host.cpu.reproducibility import make_index_add_deterministic as make_index_add_deterministic
    from mb_host.cpu.reproducibility import read_arithmetic as read_arithmetic
    from mb_host.megatron.families import HOST_LAYERS as HOST_LAYERS

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
