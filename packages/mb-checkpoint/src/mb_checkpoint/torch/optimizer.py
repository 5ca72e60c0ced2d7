"""State of an optimizer of PyTorch by the names of its parameters, in place of their numbers in its state dict."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mb_checkpoint.errors import CheckpointLayoutError, CheckpointShapeError
from mb_checkpoint.megatron.shards import Shard, StoredIndex, shard_of
from mb_checkpoint.torch.parts import ModulePart

_ON_DEVICE = ("capturable", "fused")
"""Options of a parameter group with which its number of steps is on the device of the parameter."""


class OptimizerPart:
    """State of one optimizer.

    Args:
        name: Name of the optimizer, the first part of the names of its entries.
        optimizer: An optimizer with the state of torch's base class: tensors and numbers for each parameter.
        modules: Modules that own its parameters.
    """

    def __init__(self, name: str, optimizer: Optimizer, *, modules: Sequence[ModulePart]) -> None:
        self._name, self._optimizer, self._modules = name, optimizer, modules
        self._prefix, self._groups = f"{name}.state.", f"{name}.groups"
        self._targets: dict[str, dict[str, Tensor]] = {}
        """Stored name of a parameter -> the tensors of its state that receive stored values."""

    def entries(self) -> dict[str, Any]:
        """Return the tensors, and an object with the parameter groups and all numbers.

        Raises:
            CheckpointLayoutError: A parameter belongs to no module.
        """
        tensors: dict[str, Any] = {}
        numbers: dict[str, dict[str, Any]] = {}
        groups = []
        for group, names in zip(self._optimizer.param_groups, self._names(), strict=True):
            groups.append({**group, "params": names})
            for parameter, stored in zip(group["params"], names, strict=True):
                numbers[stored] = {}
                for key, value in self._optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor) and value.dim():
                        tensors[f"{self._prefix}{stored}.{key}"] = value
                    else:
                        numbers[stored][key] = value
        on_host = _numbers_on_host([*groups, *numbers.values()])
        described = {
            "groups": on_host[: len(groups)],
            "numbers": dict(zip(numbers, on_host[len(groups) :], strict=True)),
        }
        return {**tensors, self._groups: described}

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the object; which tensors there are depends on the steps that the optimizer has made."""
        return {self._groups: None}

    def owns(self, name: str) -> bool:
        """Return whether an entry belongs to the optimizer."""
        return name == self._groups or name.startswith(self._prefix)

    def objects(self, index: StoredIndex) -> list[str]:
        """Return the object with groups and numbers."""
        return [self._groups] if self._groups in index.objects else []

    def tensors(self, index: StoredIndex, objects: Mapping[str, Any], *, folder: Path) -> dict[str, Shard]:
        """Return the tensors that receive the stored values: those of the optimizer, or new ones.

        Raises:
            CheckpointShapeError: The parameter groups differ, or a state has another shape than its sharded parameter.
        """
        if self._groups not in objects:
            return {}
        run_names, theirs = self._names(), [group["params"] for group in objects[self._groups]["groups"]]
        if run_names != theirs:
            raise CheckpointShapeError(
                f"{folder}: the parameter groups of {self._name!r} differ: {_sizes(theirs)} parameters there, "
                f"{_sizes(run_names)} in the run{_first_difference(theirs, run_names)}. Build the optimizer "
                "from the same groups of modules with the same names, or leave it out."
            )
        parameters = {
            name: parameter
            for group, names in zip(self._optimizer.param_groups, run_names, strict=True)
            for parameter, name in zip(group["params"], names, strict=True)
        }
        self._targets = {}
        blocks = {}
        for entry in filter(self.owns, index.shapes):
            name, _, key = entry.removeprefix(self._prefix).rpartition(".")
            target = self._target(parameters[name], key, entry, index, folder=folder)
            self._targets.setdefault(name, {})[key] = target
            blocks[entry] = shard_of(target)
        return blocks

    def restore(self, objects: Mapping[str, Any]) -> None:
        """Take the filled tensors, and the stored groups and numbers."""
        if self._groups not in objects:
            return
        stored = objects[self._groups]
        for group, saved in zip(self._optimizer.param_groups, stored["groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
            on_device = any(group.get(option) for option in _ON_DEVICE)
            for parameter, name in zip(group["params"], saved["params"], strict=True):
                values = {
                    key: value.to(parameter.device) if on_device and isinstance(value, Tensor) else value
                    for key, value in stored["numbers"].get(name, {}).items()
                }
                values |= self._targets.get(name, {})
                self._optimizer.state.pop(parameter, None)  # none is stored before the first step
                if values:
                    self._optimizer.state[parameter] = values
        self._targets = {}

    def _target(self, parameter: Tensor, key: str, entry: str, index: StoredIndex, *, folder: Path) -> Tensor:
        shape, dtype = index.shapes[entry], index.dtypes[entry]
        current = self._optimizer.state.get(parameter, {}).get(key)
        if isinstance(current, Tensor) and tuple(current.shape) == shape and current.dtype == dtype:
            return current
        if tuple(parameter.shape) == shape:
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        if isinstance(parameter, DTensor):
            raise CheckpointShapeError(
                f"{folder}: {entry} has shape {list(shape)}, and its parameter {list(parameter.shape)} is sharded, so "
                "that its part on this rank is unknown. Make a step before loading, so that it exists."
            )
        return torch.empty(shape, dtype=dtype, device=parameter.device)

    def _names(self) -> list[list[str]]:
        names = {key: name for module in self._modules for key, name in module.parameter_names().items()}
        lacking = [
            list(parameter.shape)
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in names
        ]
        if lacking:
            raise CheckpointLayoutError(
                f"state.{self._name}: a parameter of shape {lacking[0]} belongs to no module of the state, and has no "
                "name. Add its module."
            )
        return [
            [names[id(parameter)] for parameter in group["params"]] for group in self._optimizer.param_groups
        ]


def _numbers_on_host(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mappings of numbers with every tensor as a copy on the CPU. Synchronizes once for each device and type."""
    plain = [dict(state) for state in values]
    scalars: dict[tuple[torch.device, torch.dtype], list[tuple[dict[str, Any], str]]] = {}
    for state in plain:
        for key, value in state.items():
            if isinstance(value, Tensor):
                scalars.setdefault((value.device, value.dtype), []).append((state, key))
    for entries in scalars.values():
        copies = torch.stack([state[key].detach() for state, key in entries]).cpu().clone().unbind()
        for (state, key), copy in zip(entries, copies, strict=True):
            state[key] = copy.clone()
    return plain


def _first_difference(theirs: list[list[str]], run_names: list[list[str]]) -> str:
    """Return the first parameter with another name, as part of a message; nothing if only the sizes differ."""
    pairs = zip(chain(*theirs), chain(*run_names), strict=False)
    return next(
        (
            f"; {stored_name} there is {run_name} in the run"
            for stored_name, run_name in pairs
            if stored_name != run_name
        ),
        "",
    )


def _sizes(groups: list[list[str]]) -> str:
    return " + ".join(str(len(group)) for group in groups)
