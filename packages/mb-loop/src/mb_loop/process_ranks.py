"""Rank of this process and world size, as torch.distributed or the launcher reports them. Does not import torch."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from mb_loop.errors import ParallelSetupError


def world_size(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of ranks: of the initialised process group, else WORLD_SIZE, else 1.

    Args:
        environment: variables of the process; None: `os.environ`.

    Raises:
        ParallelSetupError: WORLD_SIZE is not a positive integer.
    """
    distributed = _initialised()
    return distributed.get_world_size() if distributed else _read("WORLD_SIZE", environment, unset=1, least=1)


def rank(environment: Mapping[str, str] | None = None) -> int:
    """Return the rank of this process: in the initialised process group, else RANK, else 0.

    Args:
        environment: variables of the process; None: `os.environ`.

    Raises:
        ParallelSetupError: RANK is not a rank.
    """
    distributed = _initialised()
    return distributed.get_rank() if distributed else _read("RANK", environment, unset=0, least=0)


def _initialised() -> Any:
    """Return torch.distributed where it has a process group, else None."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _read(name: str, environment: Mapping[str, str] | None, *, unset: int, least: int) -> int:
    text = (os.environ if environment is None else environment).get(name, str(unset))
    if not text.isdecimal() or int(text) < least:
        raise ParallelSetupError(
            f"{name}: {text!r} is not an integer of at least {least}. Launchers such as torchrun set it for each "
            "process. Correct or unset the variable."
        )
    return int(text)
