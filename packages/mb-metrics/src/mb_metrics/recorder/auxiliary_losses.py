"""Losses inside a model, of routers and of multi-token prediction, at the end of a log interval. Adapter for torch.

Megatron's layers add them to process-wide trackers. They are read from there, reduced over ranks, and the trackers are
reset. Megatron is imported only for a model that writes to them.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_metrics.flops.model_shape import FlopsModelShape
from mb_metrics.recorder.reductions import is_alone

_LOSS_OF_TYPE = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


class LayerValues(Protocol):
    """Entry of one metric in Megatron's tracker."""

    values: Tensor
    """One value per layer, summed over microbatches; 0 for layers of other stages."""
    reduce_group: ProcessGroup | None
    """Ranks over which the values are summed."""
    avg_group: ProcessGroup | None
    """Ranks over which the values are averaged."""
    needs_dp_avg: bool
    """If True, the values are averaged over data-parallel ranks."""


class ExpertTracker(Protocol):
    """Megatron's tracker of router metrics."""

    @property
    def metrics(self) -> Mapping[str, LayerValues]:
        """Metric name to its values."""

    def clear(self) -> None:
        """Reset all values to 0."""


class PredictionTracker(Protocol):
    """Megatron's tracker of multi-token prediction metrics."""

    def track_mtp_metrics(self, loss_scale: float, iteration: int, writer: Any) -> None:
        """Reduce all metrics, pass each to `writer.add_scalar`, and reset them to 0."""


def build_auxiliary_losses(
    model: object,
    *,
    pp_group: ProcessGroup | None,
    dp_group: ProcessGroup | None,
    device: torch.device | str,
) -> Callable[..., dict[str, Tensor]]:
    """Return a function of `step` and `microbatches`: the losses since its last call; it resets the trackers.

    Collective over the groups; see `expert_metrics` and `prediction_metrics`. Imports Megatron only for a model that
    writes to its trackers.
    """
    shape = FlopsModelShape(model)
    experts, predictions = shape.flag("num_moe_experts"), shape.prediction_depths
    trackers: Any = import_module("mb_metrics.mcore") if experts or predictions else None
    groups: Any = {"pp_group": pp_group, "dp_group": dp_group, "device": device}

    def read(*, step: int, microbatches: int) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if experts:
            tracker = trackers.megatron_expert_tracker()
            losses |= expert_metrics(model, tracker, microbatches=microbatches, **groups)
        if predictions:
            tracker = trackers.megatron_prediction_tracker()
            losses |= prediction_metrics(tracker, microbatches=microbatches, step=step)
        return losses

    return read


def expert_metrics(
    model: object,
    tracker: ExpertTracker,
    *,
    microbatches: int,
    pp_group: ProcessGroup | None,
    dp_group: ProcessGroup | None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Return the router losses, averaged over layers and microbatches, and reset the tracker.

    Names follow the load balancing type of the router: load_balancing_loss, seq_load_balancing_loss,
    global_load_balancing_loss, z_loss; with `moe_per_layer_logging` also "moe/<name>_layer_<i>". Collective over
    both groups and those of the routers. The values stay on the device and are identical on every stage.

    Args:
        model: Model section or config, with Megatron's field names.
        tracker: Megatron's tracker (`megatron_expert_tracker()`).
        microbatches: Microbatches of this rank since the last reset of the tracker.
        pp_group: Pipeline stages.
        dp_group: Data-parallel ranks, without context parallelism.
        device: Device of the values on a rank without experts.
    """
    shape = FlopsModelShape(model)
    length = shape.size("num_layers", 1) + shape.prediction_depths
    layers = expert_layers(shape)
    metrics: dict[str, Tensor] = {}
    for name in tracked_names(shape):
        values = _over_ranks(tracker.metrics.get(name), length, pp_group, dp_group, device) / microbatches
        metrics[name] = values.sum() / layers
        if shape.flag("moe_per_layer_logging"):
            metrics |= {f"moe/{name}_layer_{index}": value for index, value in enumerate(values)}
    tracker.clear()
    return metrics


def tracked_names(shape: FlopsModelShape) -> list[str]:
    """Return the metrics that the routers of this model track. Balancing types match by name, not by substring."""
    kinds = shape.value("moe_router_load_balancing_type") or "aux_loss"
    coefficients = shape.value("moe_aux_loss_coeff")
    listed = [kinds] if isinstance(kinds, str) else list(kinds)
    weights = (
        list(coefficients) if isinstance(coefficients, (list, tuple)) else [coefficients or 0.0] * len(listed)
    )
    pairs = zip(listed, weights, strict=True)
    names = [_LOSS_OF_TYPE[kind] for kind, weight in pairs if weight and kind in _LOSS_OF_TYPE]
    return names + (["z_loss"] if shape.value("moe_z_loss_coeff") else [])


def expert_layers(shape: FlopsModelShape) -> int:
    """Return the number of layers with experts, including those of multi-token prediction; at least 1."""
    pattern = shape.value("hybrid_layer_pattern")
    if pattern:
        return max(1, str(pattern).count("E"))
    layers = shape.size("num_layers")
    chosen = [shape.has_experts(layer) for layer in range(layers)]
    return max(1, sum(chosen) + chosen[-1] * (shape.value("mtp_num_layers") or 0))


def _over_ranks(
    entry: LayerValues | None,
    length: int,
    pp_group: ProcessGroup | None,
    dp_group: ProcessGroup | None,
    device: torch.device | str,
) -> Tensor:
    """Return a metric's value per layer, reduced over the ranks of a stage and then over stages.

    The order matters: only the stage that has the layer knows its reduction groups.
    """
    if entry is None:
        values = torch.zeros(length, device=device)
    else:
        values = entry.values.detach().float().clone()
        if entry.reduce_group is not None and not is_alone(entry.reduce_group):
            dist.all_reduce(values, group=entry.reduce_group)
        if entry.avg_group is not None:
            values = _mean(values, entry.avg_group)
        if entry.needs_dp_avg:
            values = _mean(values, dp_group)
    if not is_alone(pp_group):
        dist.all_reduce(values, group=pp_group)
    return values


def _mean(values: Tensor, group: ProcessGroup | None) -> Tensor:
    if group is None or is_alone(group):
        return values
    dist.all_reduce(values, group=group)
    return values / group.size()


def prediction_metrics(tracker: PredictionTracker, *, microbatches: int, step: int = 0) -> dict[str, Tensor]:
    """Return the metrics of multi-token prediction and reset the tracker; empty on ranks without it.

    For depth i: "mtp_<i> loss", "mtp_<i>_acceptance_rate" and "mtp_<i>_cumulative_acceptance_rate" (percent).
    Collective over the ranks of the last pipeline stage. The values stay on the device.

    Args:
        tracker: Megatron's tracker (`megatron_prediction_tracker()`).
        microbatches: Microbatches of this rank since the last reset of the tracker.
        step: Completed steps.
    """
    writer = _ScalarCollector()
    tracker.track_mtp_metrics(1 / microbatches, step, writer)
    return {name: value.detach().clone() for name, value in writer.scalars.items()}


class _ScalarCollector:
    """Writer with the interface of TensorBoard's, to which Megatron's tracker passes its metrics."""

    def __init__(self) -> None:
        self.scalars: dict[str, Tensor] = {}

    def add_scalar(self, name: str, value: Tensor, _step: int) -> None:
        self.scalars[name] = value
