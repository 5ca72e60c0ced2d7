"""State of a PyTorch run without Megatron Core, in the form that is stored: names of tensors and objects.

Stored names of `TorchState({"model": model, "optimizer": optimizer, "loader": loader})`:

* `model.layers.0.weight`: an entry of the model's state dict. Wrappers of data parallelism and compilation are not part
  of the name.
* `optimizer.state.model.layers.0.weight.exp_avg`: a tensor of the optimizer for this parameter.
* `optimizer.groups`: an object with the parameter groups, and the numbers that the optimizer holds for parameters.
* `loader`, or `loader.rank_00003` if ranks differ: an object with the state dict.
* `rng.rank_00003`: the random states of a rank.

A DTensor is stored as the shards of the ranks, so that it can be loaded into another number of ranks; any other tensor
must be equal on all ranks, but for buffers, which are those of rank 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mb_checkpoint.collectives import gather, number_of_ranks, own_rank, read_on_all_ranks
from mb_checkpoint.errors import CheckpointLayoutError, CheckpointShapeError, first_of
from mb_checkpoint.load.verified_reads import IN_MODEL, Verification, verified_reads, verify_objects
from mb_checkpoint.megatron.shards import Shard, StoredIndex, read_entries, read_index, shard_of
from mb_checkpoint.torch.optimizer import OptimizerPart
from mb_checkpoint.torch.parts import (
    ModulePart,
    ObjectPart,
    RandomPart,
    StatePart,
    ranks_of,
    require_supported,
)


class TorchState:
    """Modules, optimizers and other objects of a run by name.

    Args:
        objects: Name -> module, optimizer, or any object with `state_dict` and `load_state_dict`. The parameters of an
            optimizer belong to one of the modules.

    Raises:
        CheckpointLayoutError: There is no object, a name is not an identifier or is reserved, an object has no
            state, or a module is distributed in a way that is not supported.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        if not isinstance(objects, Mapping) or not objects:
            raise CheckpointLayoutError(
                f"state: {objects!r:.60} names no object, so that nothing would be stored. Pass a dictionary such as "
                "{'model': model, 'optimizer': optimizer}."
            )
        for name, item in objects.items():
            require_supported(name, item)
        modules = {name: item for name, item in objects.items() if isinstance(item, nn.Module)}
        optimizers = {name: item for name, item in objects.items() if _has_standard_state(item)}
        other_objects = {name: item for name, item in objects.items() if name not in {*modules, *optimizers}}
        self._modules = [ModulePart(name, module) for name, module in modules.items()]
        self._optimizers = [
            OptimizerPart(name, optimizer, modules=self._modules) for name, optimizer in optimizers.items()
        ]
        self._parts: list[StatePart] = [*self._modules, *self._optimizers]
        self._parts += [ObjectPart(name, item) for name, item in other_objects.items()]
        self._replicas_compared = False

    def entries(self, *, with_rng: bool) -> dict[str, Any]:
        """Return the entries of this rank: shards and objects. Collective.

        The first call compares the tensors that are stored once between all ranks, which synchronizes with the device.

        Raises:
            CheckpointLayoutError: A tensor that is neither a DTensor nor a buffer differs between ranks; the state
                of an object could not be loaded again, or a parameter of an optimizer belongs to no module.
        """
        parts = [*self._parts, RandomPart()] if with_rng else self._parts
        entries = {name: value for part in parts for name, value in part.entries().items()}
        tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
        if not self._replicas_compared:
            buffers = set[str]().union(*(module.buffer_names() for module in self._modules))
            _require_equal(
                {
                    name: tensor
                    for name, tensor in tensors.items()
                    if name not in buffers and not isinstance(tensor, DTensor)
                }
            )
            self._replicas_compared = True
        return {**entries, **{name: shard_of(tensor) for name, tensor in tensors.items()}}

    def load(
        self,
        folder: Path,
        *,
        with_rng: bool,
        strict: bool = True,
        verification: Verification | None = None,
    ) -> list[str]:
        """Restore the state from a checkpoint; return notes on the state that was left unchanged. Collective.

        Args:
            folder: Folder of the checkpoint.
            with_rng: Restore the random states, if they are stored for this number of ranks.
            strict: Reject a checkpoint with other entries than this run; False leaves those that are missing on one
                side unchanged.
            verification: What is to be verified while it is read; None: nothing.

        Raises:
            DamagedWhileReadError: A file differs from the manifest; some of it is in the tensors already.
            CheckpointShapeError: It was made by a run with other objects, or by a model of another shape; nothing was
                changed.
            CheckpointLayoutError: The state of an object was stored for another number of ranks; nothing was changed.
            CheckpointReadError: A rank could not read it.
        """
        index = read_on_all_ranks(folder, lambda: read_index(folder))
        notes = self._compare(index, folder=folder, strict=strict)
        verification = verification or Verification()
        in_run = {name for part in self._parts for name in part.shapes()}
        verification.overwrite(in_run, index.shapes, path=folder)
        parts = [*self._parts, RandomPart()] if with_rng else self._parts
        if with_rng and ranks_of(RandomPart.name, index) not in (0, number_of_ranks()):
            notes.append("random state: stored for another number of ranks; this run keeps its own")
        objects = dict.fromkeys(name for part in parts for name in part.objects(index))

        def read_objects() -> dict[str, Any]:
            verify_objects(folder, verification.manifest, objects.__contains__)
            return read_entries(folder, objects)

        with verified_reads(folder, verification.manifest) as reads:
            stored_objects = reads.read(read_objects)
            tensors: dict[str, Shard] = {}
            for module in self._modules:
                tensors |= module.tensors(index)
            for optimizer in self._optimizers:
                tensors |= optimizer.tensors(index, stored_objects, folder=folder)
            reads.read(lambda: read_entries(folder, tensors), after=IN_MODEL)
        for part in parts:
            part.restore(stored_objects)
        return notes

    def _compare(self, index: StoredIndex, *, folder: Path, strict: bool) -> list[str]:
        """Compare the names and shapes of this run with those that are stored; return notes on those left out."""
        shapes = {name: shape for part in self._parts for name, shape in part.shapes().items()}
        differ = [
            f"{name}: {list(index.shapes[name])} in the checkpoint, {list(shape)} in the run"
            for name, shape in shapes.items()
            if shape is not None and index.shapes.get(name, shape) != shape
        ]
        missing = [
            f"{name}: not in the checkpoint"
            for name in shapes
            if name not in index.shapes and name not in index.objects and not ranks_of(name, index)
        ]
        unread = [
            f"{name}: only in the checkpoint"
            for name in sorted({*index.shapes, *index.objects} - shapes.keys())
            if not any(
                part.owns(name) and not isinstance(part, ModulePart) for part in (*self._parts, RandomPart())
            )
        ]
        if differ or (strict and (missing or unread)):
            raise CheckpointShapeError(
                f"{folder}: made by another run: {first_of([*differ, *missing, *unread])}. Build the same objects "
                "under the same names, or pass strict=False to leave those that are missing on one side unchanged."
            )
        converted = [
            f"{name}: {index.dtypes[name]} in the checkpoint, {dtype} in the run"
            for module in self._modules
            for name, dtype in module.dtypes().items()
            if index.dtypes.get(name, dtype) != dtype
        ]
        notes = [f"left unchanged: {first_of(names)}" for names in (missing, unread) if names]
        return notes + ([f"converted: {first_of(converted)}"] if converted else [])


def _has_standard_state(item: Any) -> bool:
    """Return whether an object is an optimizer whose state is that of torch's base class."""
    return isinstance(item, Optimizer) and type(item).load_state_dict is Optimizer.load_state_dict


def _require_equal(tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors which are stored once are equal on all ranks, by their sums and shapes. Collective.

    Raises:
        CheckpointLayoutError: One differs.
    """
    if number_of_ranks() == 1:
        return
    sums: list[Tensor] = []
    for tensor in tensors.values():
        values = tensor.detach().double()
        sums += [values.sum(), values.abs().sum()]
    numbers = torch.stack([value.cpu() for value in sums]).tolist() if sums else []
    local_values = {
        name: (tuple(tensor.shape), repr(numbers[2 * number]), repr(numbers[2 * number + 1]))
        for number, (name, tensor) in enumerate(tensors.items())
    }
    for rank, remote_values in enumerate(gather(local_values)):
        differ = [
            name
            for name in {*local_values, *remote_values}
            if local_values.get(name) != remote_values.get(name)
        ]
        if differ:
            raise CheckpointLayoutError(
                f"state: {first_of(sorted(differ))}: the tensors of rank {own_rank()} and rank {rank} differ, but "
                "tensors that are no DTensors are stored once for all ranks. Distribute the model with fully_shard, "
                "or use DefaultCheckpointManager for a model of Megatron Core."
            )
