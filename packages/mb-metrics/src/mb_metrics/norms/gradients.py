"""L2 norms of gradients and weights, per parameter and of the model. Adapter for torch; does not import Megatron."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mb_metrics.norms.parameters import (
    NormGroups,
    ParameterShard,
    SquaredNorms,
    attribute,
    buffer_shards,
    groups_of,
    named_parameters,
    param_is_not_shared,
    parameter_shards,
    prefixed,
)
from mb_metrics.recorder.reductions import is_alone

GLOBAL = "l2_norm/grad/global"
PREFIX = "l2_norm/grad/"


def report_l2_norm_grad(model: Any, *, groups: NormGroups | None = None) -> dict[str, float]:
    """Return the gradient norm of each parameter of this stage, and of the complete model under "global".

    Call it after gradients are reduced over ranks and before the optimizer step, which clips them in place. Divide
    the result by the loss scale, if one is used. A gradient is Megatron's `main_grad`, or torch's `grad`. Under tensor
    parallelism a norm covers the full parameter; with the distributed optimizer it covers the shards of all ranks. The
    name of an expert refers to the expert at that position on every expert-parallel rank. With several model chunks,
    names begin with "chunk<i>.". The global norm covers all stages and counts tied embeddings once.

    Collective over all `groups`; synchronizes with the device. `GradientNorms` does not synchronize, and reports all
    stages.

    Args:
        model: A module or the list of this rank's model chunks, wrapped or not.
        groups: Process groups of the model; None: the `pg_collection` of the chunks, if they have one.
    """
    chunks = model if isinstance(model, (list, tuple)) else [model]
    names = [name for name, parameter in named_parameters(chunks) if parameter.requires_grad]
    measured = _measure(_gradient_shards(chunks), groups or groups_of(chunks))
    values = torch.cat([measured.norms, measured.total.view(1)]).tolist()
    norms = dict(zip(measured.names, values, strict=False))
    return {PREFIX + name: norms[name] for name in names if name in norms} | {GLOBAL: values[-1]}


class _StageNorms:
    """Norms of the trained parameters of all pipeline stages, under names independent of the parallel layout.

    Construction is collective over the pipeline. See `GradientNorms`.
    """

    def __init__(self, model: Any, *, groups: NormGroups | None = None) -> None:
        self.chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self.groups = groups or groups_of(self.chunks)
        self._own = _global_names(self.chunks)
        self._stages = [self._own]
        if not is_alone(self.groups.pp):
            self._stages = [{}] * self.groups.pp.size()  # type: ignore[union-attr]
            dist.all_gather_object(self._stages, self._own, group=self.groups.pp)

    def of_all_stages(
        self, pieces: Sequence[ParameterShard], *, scale: float | Tensor = 1.0
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the norm of each parameter of all stages and that of the complete model, divided by `scale`."""
        measured = _measure(pieces, self.groups)
        by_name = dict(zip(measured.names, measured.norms.unbind(), strict=True))
        zero = measured.total.new_zeros(())
        # One vector in the order of `_own`, which all ranks have from construction: the stages exchange numbers only.
        norms = torch.stack([*(by_name.get(name, zero) for name in self._own), measured.total]) / scale
        *own, total = norms.unbind()
        every = own if len(self._stages) == 1 else self._over_stages(norms[:-1])
        names = [shown for stage in self._stages for shown in stage.values()]
        named = dict(zip(names, every, strict=True))
        named.pop("", None)
        return named, total

    def _over_stages(self, own: Tensor) -> list[Tensor]:
        longest = max(map(len, self._stages))
        padded = torch.nn.functional.pad(own, (0, longest - len(own)))
        gathered = padded.new_empty(len(self._stages) * longest)
        dist.all_gather_into_tensor(gathered, padded, group=self.groups.pp)
        rows = gathered.view(len(self._stages), longest)
        return [
            norm for row, names in zip(rows, self._stages, strict=True) for norm in row[: len(names)].unbind()
        ]


class GradientNorms(_StageNorms):
    """L2 norms of the gradients of all pipeline stages, on the device, under names independent of the parallel layout.

    Layers are numbered from 0 over the complete model, so that every tensor, data, context and (virtual) pipeline
    parallel layout reports the same names and norms. The copy of tied embeddings on the last stage is omitted. The
    name of an expert refers to the expert at that position on every expert-parallel rank. Construction is collective
    over the pipeline and waits for the hosts of the other stages; calls do not synchronize with the device.

    Args:
        model: A module or the list of this rank's model chunks, wrapped or not.
        groups: Process groups of the model; None: the `pg_collection` of the chunks, if they have one.
    """

    def __call__(self, *, loss_scale: float | Tensor = 1.0) -> dict[str, Tensor]:
        """Return "l2_norm/grad/<parameter>" and "l2_norm/grad/global" as 0-dimensional tensors.

        Call it after gradients are reduced over ranks and before the optimizer step, which unscales and clips them in
        place. A parameter without a gradient has the norm 0. Collective over all groups.

        Args:
            loss_scale: Factor by which the loss, and therefore the gradients, were multiplied.
        """
        named, total = self.of_all_stages(_gradient_shards(self.chunks), scale=loss_scale)
        return {**{PREFIX + name: norm for name, norm in named.items()}, GLOBAL: total}


class WeightNorms(_StageNorms):
    """L2 norms of the trained weights of all pipeline stages, on the device, under the names of `GradientNorms`.

    The optimizer's float32 main parameters are used where they exist. Construction is collective over the pipeline.
    """

    def __call__(self) -> dict[str, Tensor]:
        """Return name -> norm as 0-dimensional tensors. Collective over all groups; does not synchronize."""
        trained = [item for item in named_parameters(self.chunks) if item[1].requires_grad]
        return self.of_all_stages(parameter_shards(self.chunks, trained, self.groups))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalNorms:
    """Norms on the device: of the parameters of this stage, in the order of `names`, and of the complete model."""

    names: list[str]
    norms: Tensor
    total: Tensor


def _measure(pieces: Sequence[ParameterShard], groups: NormGroups) -> _LocalNorms:
    pieces = [piece for piece in pieces if piece.value is not None or piece.sharded]
    squares = SquaredNorms(pieces, groups)
    total = squares.total()
    parts = [part.to(total.device) for part in (squares.dense_squares, squares.expert_squares)]
    return _LocalNorms(
        names=[piece.name for piece in (*squares.dense, *squares.experts)],
        norms=torch.cat(parts).sqrt(),
        total=total.sqrt(),
    )


def layer_numbers(chunks: Sequence[Any]) -> dict[str, int]:
    """Map the names of layers in these chunks to their numbers in the complete model, from 0."""
    return {
        prefix + name: module.layer_number - 1
        for prefix, chunk in prefixed(chunks)
        for name, module in chunk.named_modules()
        if isinstance(attribute(module, "layer_number"), int)
    }


def _global_names(chunks: Sequence[Any]) -> dict[str, str]:
    """Map names in these chunks to names in the complete model; "" for a copy of another stage's parameter."""
    numbers = layer_numbers(chunks)
    return {
        name: renumbered(name, numbers)
        if param_is_not_shared(parameter) or attribute(parameter, "allreduce") is False
        else ""
        for name, parameter in named_parameters(chunks)
        if parameter.requires_grad
    }


def renumbered(name: str, numbers: Mapping[str, int]) -> str:
    """Replace the index of a layer in its chunk by its index in the model, and remove the chunk prefix."""
    for match in re.finditer(r"\blayers\.(\d+)(?=\.)", name):
        number = numbers.get(name[: match.end()])
        if number is not None:
            name = f"{name[: match.start(1)]}{number}{name[match.end() :]}"
            break
    return re.sub(r"^chunk\d+\.", "", name)


def _gradient_shards(chunks: Sequence[Any]) -> list[ParameterShard]:
    shards = buffer_shards(chunks, "grad_data")
    return [
        _gradient_shard(name, parameter, shards)
        for name, parameter in named_parameters(chunks)
        if parameter.requires_grad
    ]


def _gradient_shard(name: str, parameter: Tensor, shards: dict[int, Tensor]) -> ParameterShard:
    if id(parameter) in shards:
        return ParameterShard(name=name, parameter=parameter, value=shards[id(parameter)], sharded=True)
    main = attribute(parameter, "main_grad")
    return ParameterShard(
        name=name, parameter=parameter, value=parameter.grad if main is None else main, sharded=False
    )
