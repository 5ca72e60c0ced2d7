"""The random state of one process: collect it, put it back, compare it."""

import hashlib
import pickle
import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import torch


class RngTracker(Protocol):
    """Named generator states, as Megatron's tensor-parallel tracker keeps them."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return the state of each name."""
        ...

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        ...


def collect_rng_state(tracker: RngTracker | None = None) -> dict[str, object]:
    """Return the states of Python's, numpy's, torch's, the current GPU's and the tracker's generators.

    Builtins and CPU tensors only, so that it can be loaded without trusting pickles. numpy is left out of
    processes that never imported it, the GPU where there is none. Synchronises with the device.
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
        name, keys, *rest = numpy.random.get_state()
        state["np_rng_state"] = (name, keys.tolist(), *rest)
    if torch.cuda.is_available():
        state["cuda_rng_state"] = torch.cuda.get_rng_state()
    return state


def restore_rng_state(state: Mapping[str, Any], tracker: RngTracker | None = None) -> None:
    """Put back what `collect_rng_state` returned.

    Generators that this process does not have (numpy not imported, no GPU) are skipped, and those that the
    state does not hold stay as they are.

    Raises:
        KeyError: The state lacks Python's, torch's or the tracker's generators.
    """
    version, words, gauss = state["random_rng_state"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch_rng_state"])
    if tracker is not None:
        tracker.set_states(dict(state["rng_tracker_states"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "np_rng_state" in state:
        numpy.random.set_state(tuple(state["np_rng_state"]))
    if torch.cuda.is_available() and "cuda_rng_state" in state:
        torch.cuda.set_rng_state(state["cuda_rng_state"])


def rng_digest(state: Mapping[str, object]) -> str:
    """Return a short text that two states share only if they are equal."""
    plain = {name: _plain(value) for name, value in sorted(state.items())}
    return hashlib.sha256(pickle.dumps(plain)).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in sorted(value.items())}
    return value
