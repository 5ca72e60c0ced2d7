"""Counters of a run as a `train_state.pt` file: a dict of 0-d tensors."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from mb_checkpoint.errors import TrainStateError
from mb_schema.declared_sizes import pickle_in_archive

FLOPS = "floating_point_operations_so_far"
EXACT_FLOPS = "num_floating_point_operations_so_far"
"""Entry of the state of all ranks with the exact integer, of which float64 in train_state.pt keeps 15 digits."""
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""Stored dtype of each Python type. FLOPs are always float64: int64 overflows at 9e18, float32 is inexact above
1e16."""


def encode_train_state(counters: Mapping[str, object]) -> bytes:
    """Return the content of a train_state.pt file.

    Raises:
        TrainStateError: A counter is neither a number nor a bool, an integer has more than 64 bits, or the step is
            missing.
    """
    step_in(counters)
    tensors = {}
    for name, counter in counters.items():
        value = counter.item() if isinstance(counter, torch.Tensor) and counter.numel() == 1 else counter
        dtype = DTYPES.get(type(value))
        if dtype is None:
            raise TrainStateError(
                f"train state: {name} is {value!r}, a {type(value).__name__}; only bool, int and float are stored. "
                "Leave it out of state_dict()."
            )
        if name == FLOPS:
            dtype = torch.float64
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TrainStateError(
                f"train state: {name} is {value:,}, and integers of 64 bits are stored. Leave it out of state_dict()."
            )
        tensors[name] = torch.tensor(value, dtype=dtype)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def step_in(counters: Mapping[str, Any]) -> int:
    """Return the step of a run's counters.

    Raises:
        TrainStateError: It is missing.
    """
    if "step" not in counters:
        raise TrainStateError(
            f"train state: needs 'step', has only {sorted(counters)}. Add it to state_dict()."
        )
    return int(counters["step"])


def decode_train_state(content: bytes, *, source: str) -> dict[str, bool | int | float]:
    """Return the counters of a train_state.pt file as Python numbers; FLOPs as an integer.

    Raises:
        TrainStateError: The content is not such a file; the message names `source`.
    """
    try:
        pickle_in_archive(io.BytesIO(content))  # checks the sizes and the depth that it declares
        with warnings.catch_warnings():
            # Torch's warnings about a damaged file; the error below describes it.
            warnings.simplefilter("ignore")
            stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        counters = {name: value.item() for name, value in stored.items()}
        counters["step"] = int(counters["step"])
        if FLOPS in counters:
            counters[FLOPS] = int(counters[FLOPS])
    except Exception as error:  # a changed bit can make the reader of the pickle raise anything
        # torch's text about a pickle has many lines, and advises to unpickle without restrictions
        text = "" if isinstance(error, UnpicklingError) else f": {error}"
        problem = f"cannot be read as a train state ({type(error).__name__}{text})"
        raise TrainStateError(
            f"{source}: {problem}. The file is damaged or of another kind; resume from an older checkpoint.",
            problem=problem,
        ) from error
    return counters


def read_train_state(path: Path) -> dict[str, bool | int | float]:
    """Read a train_state.pt file. Not cached: each call reads the file.

    Raises:
        TrainStateError: The file is damaged.
        FileNotFoundError: The file does not exist.
    """
    return decode_train_state(path.read_bytes(), source=str(path))
