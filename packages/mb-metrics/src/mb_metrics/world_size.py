"""World size reported by torch.distributed or by the launcher. Does not import torch."""

import os
import sys
from collections.abc import Mapping


def current_world_size(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of ranks: of the initialised process group, else WORLD_SIZE, else 1.

    Args:
        environment: environment variables; None: `os.environ`.

    Raises:
        ValueError: WORLD_SIZE is not a positive integer.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    text = (os.environ if environment is None else environment).get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"WORLD_SIZE: {text!r} is not a positive integer, and rates per device are divided by it. Launchers such "
            "as torchrun set it for each process. Correct or unset the variable, or pass world_size."
        )
    return int(text)
