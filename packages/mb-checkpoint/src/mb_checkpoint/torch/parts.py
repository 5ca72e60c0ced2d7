"""Parts of the state of a PyTorch run: modules, random states, and other objects; optimizers are in torch_optimizer.

A part knows the names of its entries in a checkpoint, and how they are restored.
"""

import hashlib
import io
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mb_checkpoint.collectives import gather, number_of_ranks, own_rank
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.formats.unpickling import load_object
from mb_checkpoint.megatron.shards import Shard, StoredIndex, content, shard_of
from mb_checkpoint.state.rng import RngTracker, collect_rng_state, restore_rng_state

_EXTRA_STATE = "_extra_state"
"""Last part of the name under which torch stores what `get_extra_state` of a module returns."""

_DATA_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@runtime_checkable
class Stateful(Protocol):
    """Object with a state, such as a learning-rate scheduler, a gradient scaler or a data loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore the state."""
        ...


class StatePart(Protocol):
    """Part of the state, which one object of the user holds."""

    def entries(self) -> dict[str, Any]:
        """Return what this rank stores: tensors and objects by name. Collective."""

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the entries that a checkpoint must have: the shape of each tensor, None for an object."""

    def owns(self, name: str) -> bool:
        """Return whether an entry of a checkpoint belongs to this part."""

    def objects(self, index: StoredIndex) -> list[str]:
        """Return the names of the stored objects to read on this rank."""

    def restore(self, objects: Mapping[str, Any]) -> None:
        """Restore the objects that were read; the tensors have been."""


class ModulePart:
    """State dict of a module. Data parallelism and compilation are not part of the names.

    Tensors are read into the parameters and buffers. Everything is then passed to `load_state_dict`, so that hooks run,
    and extra states and tensors that the state dict holds as copies reach the module.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self._name, self._module = name, module
        self._read: dict[str, Tensor] = {}
        """Name in the state dict -> tensor that receives a stored value and is not the module's own memory."""

    @property
    def _replicated(self) -> list[str]:
        """Return the prefixes of wrappers of data parallelism, the innermost first."""
        names = [name for name, module in self._module.named_modules() if isinstance(module, _DATA_PARALLEL)]
        return sorted((f"{name}." if name else "" for name in names), key=len, reverse=True)

    def parameter_names(self) -> dict[int, str]:
        """Return the name of each parameter by its identity."""
        return {id(parameter): self._stored(raw) for raw, parameter in self._module.named_parameters()}

    def entries(self) -> dict[str, Any]:
        """Return the state dict. Buffers are those of rank 0, as data parallelism keeps them."""
        of_rank_zero = self.buffer_names()
        return {
            key: value
            for key, _, value in self._items()
            if key not in of_rank_zero or isinstance(value, DTensor) or own_rank() == 0
        }

    def buffer_names(self) -> set[str]:
        """Return the names of the buffers, which may differ between ranks."""
        return {self._stored(raw) for raw, _ in self._module.named_buffers()}

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the state dict; None for extra states, whose form may differ from the stored one."""
        return {
            key: tuple(value.shape) if isinstance(value, Tensor) and not _is_extra(raw) else None
            for key, raw, value in self._items()
        }

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the types of the parameters and buffers."""
        return {
            key: value.dtype
            for key, raw, value in self._items()
            if isinstance(value, Tensor) and not _is_extra(raw)
        }

    def owns(self, name: str) -> bool:
        """Return whether an entry is one of the module's state dict."""
        return name.startswith(f"{self._name}.")

    def objects(self, index: StoredIndex) -> list[str]:
        """Return the extra states that are no tensors."""
        return [key for key, _, _ in self._items() if key in index.objects]

    def tensors(self, index: StoredIndex) -> dict[str, Shard]:
        """Return the tensors that receive stored values: parameters and buffers, or new ones in place of copies."""
        self._read, blocks = {}, {}
        registered = {_memory(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        for key, raw, value in self._items():
            if key not in index.shapes:
                continue
            if _is_extra(raw):
                device = value.device if isinstance(value, Tensor) else None
                self._read[raw] = torch.empty(index.shapes[key], dtype=index.dtypes[key], device=device)
            elif _memory(value) not in registered:
                self._read[raw] = torch.empty_like(value)
            blocks[key] = shard_of(self._read.get(raw, value))
        return blocks

    def restore(self, objects: Mapping[str, Any]) -> None:
        """Load the state dict, with what was read."""
        state = {
            raw: objects.get(key, value)
            for key, raw, value in self._items()
            if not _is_extra(raw) or key in objects
        }
        self._module.load_state_dict({**state, **self._read}, strict=False)
        self._read = {}

    def _items(self) -> Iterator[tuple[str, str, Any]]:
        for raw, value in self._module.state_dict().items():
            yield self._stored(raw), raw, value

    def _stored(self, raw: str) -> str:
        for wrapper in self._replicated:
            if raw.startswith(f"{wrapper}module."):
                raw = wrapper + raw.removeprefix(f"{wrapper}module.")
        for wrapper in _WRAPPERS:
            raw = raw.replace(wrapper, "")
        return f"{self._name}.{raw}"


def _is_extra(raw: str) -> bool:
    return raw.rpartition(".")[2] == _EXTRA_STATE


def _memory(tensor: Any) -> int | None:
    """Return the address of the memory of a tensor, or of its local part; None for what is not a plain tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    try:
        return int(local.untyped_storage().data_ptr())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


class ObjectPart:
    """State dict of any other object: stored once if it is equal on all ranks, otherwise by every rank."""

    def __init__(self, name: str, stateful: Stateful) -> None:
        self._name, self._object = name, stateful

    def entries(self) -> dict[str, Any]:
        """Return the state dict. Collective.

        Raises:
            CheckpointLayoutError: It could be stored, but not loaded without executing code of it.
        """
        state = self._object.state_dict()
        digest = _digest(state, name=self._name)
        is_shared = all(other_digest == digest for other_digest in gather(digest))
        return {self._name if is_shared else rank_name(self._name): state}

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the name of the object."""
        return {self._name: None}

    def owns(self, name: str) -> bool:
        """Return whether an entry is the state, or that of a rank."""
        return name == self._name or name.startswith(f"{self._name}.rank_")

    def objects(self, index: StoredIndex) -> list[str]:
        """Return the state, or that of this rank.

        Raises:
            CheckpointLayoutError: It was stored by another number of ranks.
        """
        if self._name in index.objects:
            return [self._name]
        stored = ranks_of(self._name, index)
        if stored and stored != number_of_ranks():
            raise CheckpointLayoutError(
                f"state.{self._name}: differs between the {stored} ranks that stored it, and this run has "
                f"{number_of_ranks()}. Use the same number of ranks, or leave it out."
            )
        return [rank_name(self._name)] if stored else []

    def restore(self, objects: Mapping[str, Any]) -> None:
        """Restore the state."""
        for key in (self._name, rank_name(self._name)):
            if key in objects:
                self._object.load_state_dict(objects[key])


class RandomPart:
    """Random states of Python, NumPy and torch, of every rank, and those of Megatron Core's tracker if it is in use."""

    name = "rng"

    def entries(self) -> dict[str, Any]:
        """Return the random states of this rank."""
        return {rank_name(self.name): collect_rng_state(_tracker())}

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return nothing: a checkpoint without random states can be loaded."""
        return {}

    def owns(self, name: str) -> bool:
        """Return whether an entry is a random state."""
        return name.startswith(f"{self.name}.rank_")

    def objects(self, index: StoredIndex) -> list[str]:
        """Return the random states of this rank, if as many ranks stored theirs."""
        return [rank_name(self.name)] if ranks_of(self.name, index) == number_of_ranks() else []

    def restore(self, objects: Mapping[str, Any]) -> None:
        """Restore the random states."""
        state = objects.get(rank_name(self.name))
        if state is not None:
            restore_rng_state(state, _tracker() if state["rng_tracker_states"] else None)


def _tracker() -> RngTracker | None:
    """Return Megatron Core's tracker, which dropout of its layers uses, if the process has imported that."""
    if "megatron.core.tensor_parallel.random" not in sys.modules:
        return None
    tracker: RngTracker = import_module("mb_checkpoint.mcore").MegatronRng()
    return tracker


def rank_name(name: str) -> str:
    """Return the name of an entry that only this rank has."""
    return f"{name}.rank_{own_rank():05d}"


def ranks_of(name: str, index: StoredIndex) -> int:
    """Return the number of ranks that stored an entry each."""
    return sum(key.startswith(f"{name}.rank_") for key in index.objects)


def _digest(state: Any, *, name: str) -> str:
    """Return a hash of a state, after loading it once as a load would."""
    try:
        stored = content(state)
        load_object(io.BytesIO(stored), path=Path(name))  # type: ignore[arg-type]  # no shard
    except Exception as error:
        raise CheckpointLayoutError(
            f"state.{name}: its state could not be stored and loaded again ({type(error).__name__}: {error}). Let "
            "state_dict return tensors, numbers, text, lists and dictionaries."
        ) from error
    return hashlib.sha256(stored).hexdigest()  # type: ignore[arg-type]


def require_supported(name: str, item: Any) -> None:
    """Check that an object has a state, under a usable name.

    Raises:
        CheckpointLayoutError: It has none, or the name is reserved.
    """
    if not name.isidentifier() or name == RandomPart.name:
        raise CheckpointLayoutError(
            f"state: {name!r} cannot name an object, because names of entries begin with it. Use an identifier other "
            f"than {RandomPart.name!r}."
        )
    if not isinstance(item, Stateful):
        raise CheckpointLayoutError(
            f"state.{name}: a {type(item).__name__} has no state_dict and load_state_dict, so that nothing of it could "
            "be stored. Pass an object that has both."
        )
    if isinstance(item, nn.Module) and any(
        isinstance(part, torch.distributed.fsdp.FullyShardedDataParallel) for part in item.modules()
    ):
        raise CheckpointLayoutError(
            f"state.{name}: is wrapped by FullyShardedDataParallel, whose parameters are flattened. Use fully_shard."
        )
