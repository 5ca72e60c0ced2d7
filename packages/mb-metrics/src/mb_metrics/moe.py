"""Metrics of experts and of multi-token prediction, out of Megatron's trackers. A door to torch, not to Megatron."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_metrics.flops_model_shape import FlopsModelShape
from mb_metrics.reductions import is_alone

_LOSS_OF_TYPE = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


class LayerValues(Protocol):
    """What Megatron's tracker has of one metric."""

    values: Tensor
    """A value per layer, summed over microbatches; layers of other stages have 0."""
    reduce_group: ProcessGroup | None
    """Ranks over which it is summed."""
    avg_group: ProcessGroup | None
    """Ranks over which it is averaged."""
    needs_dp_avg: bool
    """Whether it is averaged over data-parallel ranks."""


class ExpertTracker(Protocol):
    """Megatron's tracker of what routers measure."""

    @property
    def metrics(self) -> Mapping[str, LayerValues]:
        """Metric name to its values."""

    def clear(self) -> None:
        """Set all values to 0."""


class PredictionTracker(Protocol):
    """Megatron's tracker of what multi-token prediction measures."""

    def track_mtp_metrics(self, loss_scale: float, iteration: int, writer: Any) -> None:
        """Reduce, hand every metric to `writer.add_scalar`, and set all to 0."""


def expert_metrics(
    model: object,
    tracker: ExpertTracker,
    *,
    microbatches: int,
    pp_group: ProcessGroup | None,
    dp_group: ProcessGroup | None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Return the routers' losses, means over layers and microbatches, and set the tracker to 0.

    Names follow the router's kinds of balancing: load_balancing_loss, seq_load_balancing_loss,
    global_load_balancing_loss, z_loss; with `moe_per_layer_logging` also "moe/<name>_layer_<i>". Collective over
    both groups and those of the routers; the values stay on the device, and are the same on every stage.

    Args:
        model: The model's section or config, with Megatron's field names.
        tracker: Megatron's (`megatron_expert_tracker()`).
        microbatches: Of this rank since the tracker was last set to 0.
        pp_group: Pipeline stages.
        dp_group: Data-parallel ranks, without context parallelism.
        device: Where this rank's values are, if it has no experts.
    """
    shape = FlopsModelShape(model)
    length = shape.size("num_layers", 1) + (shape.value("mtp_num_layers") or 0)
    layers = expert_layers(shape)
    found: dict[str, Tensor] = {}
    for name in tracked_names(shape):
        values = _over_ranks(tracker.metrics.get(name), length, pp_group, dp_group, device) / microbatches
        found[name] = values.sum() / layers
        if shape.flag("moe_per_layer_logging"):
            found |= {f"moe/{name}_layer_{index}": value for index, value in enumerate(values)}
    tracker.clear()
    return found


def tracked_names(shape: FlopsModelShape) -> list[str]:
    """Return what routers of this model measure: a kind counts when it is named, not when its name contains another."""
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
    """Return how many layers have experts, those of multi-token prediction included; at least 1."""
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
    """Return a metric's value per layer. First over the ranks of a stage, which alone know how, then over stages."""
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
    """Return what multi-token prediction measured, and set the tracker to 0; empty on ranks without it.

    For depth i: "mtp_<i> loss", "mtp_<i>_acceptance_rate" and "mtp_<i>_cumulative_acceptance_rate" (percent).
    Collective over the ranks that have the last layers. The values stay on the device.

    Args:
        tracker: Megatron's (`megatron_prediction_tracker()`).
        microbatches: Of this rank since the tracker was last set to 0.
        step: Steps done.
    """
    found: dict[str, Tensor] = {}
    tracker.track_mtp_metrics(1 / microbatches, step, _ScalarCollector(found.__setitem__))
    return {name: value.detach().clone() for name, value in found.items()}


class _ScalarCollector:
    """What looks like a TensorBoard writer and passes each scalar on."""

    def __init__(self, take: Callable[[str, Tensor], None]) -> None:
        self._take = take

    def add_scalar(self, name: str, value: Tensor, _step: int) -> None:
        self._take(name, value)
