"""Random state of a process: collect, restore and compare it."""

import hashlib
import pickle
import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import torch


class RngTracker(Protocol):
    """Named generator states, as in Megatron's tensor-parallel tracker."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return the state of each name."""
        ...

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        ...


def collect_rng_state(tracker: RngTracker | None = None) -> dict[str, object]:
    """Return the states of the generators of Python, NumPy, torch, the current GPU and the tracker.

    The state consists of builtins and CPU tensors, so that it can be loaded without unrestricted pickles. NumPy is
    omitted in processes that have not imported it, and the GPU if there is none. Synchronizes with the device.
    """
    state: dict[str, object] = {
        "random_rng_state": random.getstate(),
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {},
    }
    if tracker is not None:
        state["rng_tracker_states"] = {name: value.clone() for name, value in tracker.get_states().items()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *counters = numpy.random.get_state()
        state["np_rng_state"] = (name, keys.tolist(), *counters)
    if torch.cuda.is_available():
        state["cuda_rng_state"] = torch.cuda.get_rng_state()
    return state


def restore_rng_state(state: Mapping[str, Any], tracker: RngTracker | None = None) -> None:
    """Restore a state that `collect_rng_state` returned.

    Generators that this process does not have (NumPy not imported, no GPU) are skipped; those that the state does not
    hold remain unchanged.

    Raises:
        KeyError: The state lacks the generators of Python, torch or the tracker.
    """
    version, numbers, gauss = state["random_rng_state"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch_rng_state"])
    if tracker is not None:
        tracker.set_states(dict(state["rng_tracker_states"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "np_rng_state" in state:
        numpy.random.set_state(tuple(state["np_rng_state"]))
    if torch.cuda.is_available() and "cuda_rng_state" in state:
        on_gpu = state["cuda_rng_state"]
        # Else that of a CPU, which `save/state.py` stores.
        if on_gpu.numel() == torch.cuda.get_rng_state().numel():
            torch.cuda.set_rng_state(on_gpu)


def rng_digest(state: Mapping[str, object]) -> str:
    """Return a digest that is equal for two states only if the states are equal."""
    values: dict[str, object] = {}
    for name, value in state.items():
        nested = (
            {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, Mapping) else {}
        )
        values |= nested or {name: value}
    plain = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in sorted(values.items())
    }
    return hashlib.sha256(pickle.dumps(plain)).hexdigest()
