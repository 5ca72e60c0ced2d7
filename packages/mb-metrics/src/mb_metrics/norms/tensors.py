"""Norms of the weights, gradients and module outputs of chosen steps, in a file. Adapter for torch.

For a step with a conspicuous loss they show by layer which weight, gradient or output changed first. Only the chosen
steps cost time.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mb_metrics.norms.gradients import GLOBAL, PREFIX, WeightNorms, layer_numbers, renumbered
from mb_metrics.norms.model import build_norms
from mb_metrics.norms.parameters import NormGroups, prefixed
from mb_metrics.run.sections import MeasuredModel, MetricsSettings
from mb_metrics.run.training_context import MetricsContext
from mb_metrics.run.training_metrics import loss_scale
from mb_schema.json_rows import plain_number

FILE = "tensor_norms.jsonl"
"""Name of the file in a run folder."""


class TensorNorms:
    """Callback that writes the norms of all tensors of chosen steps, one JSON object per step.

    * `weights`: L2 norm of each trained weight before the step, over all its shards.
    * `gradients`: L2 norm of each gradient before clipping.
    * `outputs`: of each module's first floating-point output: `rms` (root mean square over all elements, microbatches
      and ranks), `max_abs` and `non_finite` (number of elements that are NaN or infinite).
    * `output_gradients`: the same of the gradient with respect to this output, without the loss scale.

    Names are those of the complete model. The root mean square of an output does not depend on the parallel layout,
    unlike its norm. Every rank has an instance. Collective over the world in chosen steps, which synchronize with the
    device; other steps cost nothing.

    Args:
        steps: Numbers of the steps, from 1.
        chunks: This rank's model chunks, wrapped or not.
        gradient_norms: Returns "l2_norm/grad/<name>" -> norm, for a loss scale.
        weight_norms: Returns name -> norm; None: weights are omitted.
        file: Receives the objects; None on every rank but the one that writes.
    """

    def __init__(
        self,
        steps: Collection[int],
        *,
        chunks: Sequence[Any],
        gradient_norms: Callable[..., Mapping[str, Any]],
        weight_norms: Callable[[], Mapping[str, Tensor]] | None,
        file: Path | None,
    ) -> None:
        self._steps = frozenset(steps)
        self._chunks = list(chunks)
        self._gradient_norms, self._weight_norms = gradient_norms, weight_norms
        self._file = file
        self._weights: Mapping[str, float] = {}
        self._gradients: Mapping[str, float] = {}
        self._loss_scale = 1.0
        self._watch: _OutputWatch | None = None

    def on_train_step_start(self, context: MetricsContext) -> None:
        """Measure the weights, and attach hooks to all modules, before a chosen step."""
        if context.state.train_state.step + 1 in self._steps:
            self._weights = {} if self._weight_norms is None else _to_host(self._weight_norms())
            self._watch = _OutputWatch(self._chunks)

    def on_before_optimizer_step(self, context: MetricsContext) -> None:
        """Measure the gradients before they are clipped."""
        if self._watch is not None:
            scale = loss_scale(context.optimizer)
            # read now, because the optimizer may change it in its step
            self._loss_scale = 1.0 if scale is None else float(torch.as_tensor(scale))
            norms = _to_host(self._gradient_norms(loss_scale=self._loss_scale))
            self._gradients = {
                name.removeprefix(PREFIX): norm for name, norm in norms.items() if name != GLOBAL
            }

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Detach the hooks, combine the statistics of all ranks, and write them."""
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        watch.close()
        outputs = _over_ranks(watch.outputs)
        output_gradients = _over_ranks(watch.gradients, scale=self._loss_scale)
        if self._file is not None:
            row = {
                "step": context.state.train_state.step,
                "weights": {name: plain_number(norm) for name, norm in self._weights.items()},
                "gradients": {name: plain_number(norm) for name, norm in self._gradients.items()},
                "outputs": outputs,
                "output_gradients": output_gradients,
            }
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        self._weights, self._gradients = {}, {}


def build_tensor_norms(
    config: MetricsSettings, model: MeasuredModel, *, folder: Path | None
) -> TensorNorms | None:
    """Return the callback for `logger.tensor_norms_steps`; None if no step is chosen. Collective over the pipeline.

    Weights are omitted for a model with per-module parallelism.

    Args:
        config: Sections of the run.
        model: The wrapped model.
        folder: Run folder; None on every rank but the one that writes.
    """
    steps = config.logger.tensor_norms_steps
    if not steps:
        return None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    modules = model.modules
    return TensorNorms(
        steps,
        chunks=model.chunks if modules is None else list(modules.wrapped.values()),
        gradient_norms=build_norms(model).gradients,
        weight_norms=None
        if modules is not None
        else WeightNorms(model.chunks, groups=NormGroups.of(model.groups)),
        file=None if folder is None else folder / FILE,
    )


@dataclass(frozen=True, kw_only=True)
class _Statistics:
    """Statistics of the elements of a tensor, on its device; added up over microbatches and ranks."""

    squares: Tensor
    """Sum of the squares of finite elements, float64."""
    count: int
    largest: Tensor
    non_finite: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> "_Statistics":
        values = tensor.detach().float()
        finite = torch.isfinite(values)
        kept = torch.where(finite, values, 0.0)
        return cls(
            squares=torch.linalg.vector_norm(kept, dtype=torch.float64).square(),
            count=values.numel(),
            largest=kept.abs().amax() if values.numel() else kept.sum(),
            non_finite=(~finite).sum(),
        )

    def __add__(self, other: "_Statistics") -> "_Statistics":
        return _Statistics(
            squares=self.squares + other.squares,
            count=self.count + other.count,
            largest=torch.maximum(self.largest, other.largest),
            non_finite=self.non_finite + other.non_finite,
        )

    def to_host(self) -> "_Statistics":
        """Return a copy on the host, which ranks exchange; waits for the device."""
        tensors = (self.squares, self.largest, self.non_finite)
        squares, largest, non_finite = (tensor.cpu() for tensor in tensors)
        return _Statistics(squares=squares, count=self.count, largest=largest, non_finite=non_finite)

    def row(self, scale: float) -> dict[str, float | str]:
        """Return the statistics of the tensor divided by `scale`, as they are written to the file."""
        return {
            "rms": plain_number((float(self.squares) / max(self.count, 1)) ** 0.5 / scale),
            "max_abs": plain_number(float(self.largest) / scale),
            "non_finite": int(self.non_finite),
        }


@dataclass
class _OutputWatch:
    """Hooks on the outputs of all modules, and on the gradients with respect to them."""

    chunks: Sequence[Any]
    outputs: dict[str, _Statistics] = field(default_factory=dict)
    gradients: dict[str, _Statistics] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, module in _named_modules(self.chunks):
            self._handles.append(module.register_forward_hook(self._hook(name)))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[Any, Any, Any], None]:
        def on_output(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = next(_floating_point(output), None)
            if tensor is None or not torch.is_grad_enabled():
                return  # with recomputation of activations, the second forward pass is counted
            _add(self.outputs, name, _Statistics.of(tensor))
            if tensor.requires_grad:
                tensor.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: _add(self.gradients, name, _Statistics.of(gradient))
                )

        return on_output


def _named_modules(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the modules below each chunk, with the names of their parameters' owners in the complete model."""
    numbers = layer_numbers(chunks)
    for prefix, chunk in prefixed(chunks):
        for name, module in chunk.named_modules():
            if name:
                yield renumbered(f"{prefix}{name}.", numbers).rstrip("."), module


def _floating_point(output: Any) -> Iterator[Tensor]:
    for item in output if isinstance(output, (list, tuple)) else (output,):
        if isinstance(item, Tensor) and item.is_floating_point():
            yield item


def _add(table: dict[str, _Statistics], name: str, statistics: _Statistics) -> None:
    table[name] = table[name] + statistics if name in table else statistics


def _over_ranks(table: Mapping[str, _Statistics], *, scale: float = 1.0) -> dict[str, dict[str, float | str]]:
    """Return the statistics over all ranks, by the order of the stages. Collective over the world."""
    own = {name: statistics.to_host() for name, statistics in table.items()}
    by_rank: list[Any] = [own]
    if dist.is_initialized() and dist.get_world_size() > 1:
        by_rank = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, own)
    combined: dict[str, _Statistics] = {}
    for of_rank in by_rank:
        for name, statistics in of_rank.items():
            _add(combined, name, statistics)
    return {name: statistics.row(scale) for name, statistics in combined.items()}


def _to_host(norms: Mapping[str, Any]) -> dict[str, float]:
    """Return the norms as numbers, with one copy from the device."""
    values = [torch.as_tensor(norm, dtype=torch.float64) for norm in norms.values()]
    if not values:
        return {}
    device = next((value.device for value in values if value.device.type != "cpu"), values[0].device)
    return dict(zip(norms, torch.stack([value.to(device) for value in values]).tolist(), strict=True))
