"""Device memory: allocator statistics, their maximum over pipeline stages, and theoretical footprints."""

import math
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from mb_metrics.flops.model_shape import FlopsModelShape
from mb_metrics.names import DEVICE_MEMORY_USED, MEMORY_KEYS, memory_name
from mb_metrics.recorder.reductions import device_of, is_alone

_DIGITS = 5
_MAIN_PARAM_AND_MOMENTS = 12
_MOMENTS = 8


def report_memory(
    memory_keys: Mapping[str, str] | None = None, *, stats: Mapping[str, int] | None = None
) -> dict[str, int | float]:
    """Return the statistics of this rank's CUDA allocator, by name; empty without a GPU.

    Bytes are converted to gigabytes (10^9) with five significant digits; other numbers are unchanged. `memory_keys`
    maps entries of torch.cuda.memory_stats() to names and replaces `MEMORY_KEYS`; entries that torch does not report
    are omitted. Does not synchronize with the device.

    Args:
        memory_keys: Reported statistics; None or empty: `MEMORY_KEYS`.
        stats: The statistics; None: torch.cuda.memory_stats().
    """
    stats = torch.cuda.memory_stats() if stats is None else stats
    report: dict[str, int | float] = {}
    for key, name in (memory_keys or MEMORY_KEYS).items():
        if key in stats:
            value = _rounded(stats[key] / 1e9) if "bytes" in key else stats[key]
            report[memory_name(key, name)] = value
    return report


def _rounded(number: float) -> float:
    return round(number, _DIGITS - 1 - math.floor(math.log10(abs(number)))) if number else 0.0


def device_memory_used() -> dict[str, float]:
    """Return the used memory of this rank's GPU over all processes, as reported by the driver, in gigabytes.

    The name is "mem-device-used-gigabytes". Empty without a GPU.
    """
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {DEVICE_MEMORY_USED: _rounded((total - free) / 1e9)}


def reduce_max_memory_across_pp_group(
    memory_report: Mapping[str, int | float], pp_group: ProcessGroup | None
) -> dict[str, int | float]:
    """Return the maximum of each value over pipeline stages; integers remain integers.

    Collective over `pp_group`, in one operation: every rank must pass the same names in the same order. Returns the
    report unchanged if it is empty or there is one stage.
    """
    if not memory_report or is_alone(pp_group):
        return dict(memory_report)
    packed = torch.tensor(list(memory_report.values()), dtype=torch.float64, device=device_of(pp_group))
    dist.all_reduce(packed, op=dist.ReduceOp.MAX, group=pp_group)
    return {
        name: int(largest) if isinstance(value, int) and not isinstance(value, bool) else largest
        for (name, value), largest in zip(memory_report.items(), packed.tolist(), strict=True)
    }


def weight_and_optimizer_bytes(
    parameters: Iterable[torch.Tensor], *, optimizer_shards: int = 1, gradient_bytes: int = 4
) -> float:
    """Return the bytes of the weights, gradients and Adam state of these parameters on this rank.

    A 2-byte weight has a float32 main parameter and two moments in the optimizer; a float32 weight has only the two
    moments. Frozen parameters take only their weight. Source: Rajbhandari et al., "ZeRO" (2020), section 3.1, with
    gradients of `gradient_bytes`.

    Args:
        parameters: Parameters of this rank.
        optimizer_shards: Number of ranks over which the optimizer state is sharded (distributed optimizer).
        gradient_bytes: Bytes of one gradient element; 4 if gradients are accumulated in float32.
    """
    total = 0.0
    for parameter in parameters:
        bytes_per_element = float(parameter.element_size())
        if parameter.requires_grad:
            state = _MOMENTS if parameter.element_size() >= 4 else _MAIN_PARAM_AND_MOMENTS
            bytes_per_element += gradient_bytes + state / optimizer_shards
        total += parameter.numel() * bytes_per_element
    return total


def activation_bytes(
    model: object, *, seq_length: int, micro_batch_size: int, num_microbatches: int | None = None
) -> float | None:
    """Return the peak bytes of activations on the first pipeline stage; None: not known.

    Known for a dense GPT with sequence parallelism and selective recomputation: per layer and microbatch of b
    sequences of s tokens and width h, 34 s b h / t bytes with the feed-forward part scaled to its width, times the
    number of microbatches in flight on the first stage. Source: Korthikanti et al., "Reducing Activation
    Recomputation" (2022), section 4.2.3; 16 of the 34 belong to the feed-forward layer, 24 if it is gated.
    """
    shape = FlopsModelShape(model)
    if (
        shape.value("num_moe_experts") is not None
        or shape.flag("hybrid_layer_pattern")
        or not shape.flag("sequence_parallel")
        or shape.value("recompute_granularity") != "selective"
    ):
        return None
    hidden, stages = shape.hidden, shape.size("pipeline_model_parallel_size", 1)
    ranks = shape.size("tensor_model_parallel_size", 1) * shape.size("context_parallel_size", 1)
    per_layer = seq_length * micro_batch_size * (18 * hidden + 2 * shape.matrices * shape.ffn)
    chunks = shape.size("virtual_pipeline_model_parallel_size", 1)
    in_flight = stages if chunks == 1 else stages + (stages - 1) / chunks
    in_flight = in_flight if num_microbatches is None else min(in_flight, num_microbatches)
    layers = shape.size("num_layers") / stages
    return per_layer * layers * in_flight / ranks


def theoretical_memory_line(*, weights: float, activations: float | None) -> str:
    """Return Megatron's line on the theoretical memory footprint, from bytes."""
    line = f"Theoretical memory footprints: weight and optimizer={weights / 2**20:.2f} MB"
    if activations is None:
        return line
    total = weights + activations
    return f"{line}, activation={activations / 2**20:.2f} MB, total={total / 2**20:.2f} MB"


def memory_line(report: Mapping[str, int | float], *, rank: int, steps: int) -> str:
    """Return Megatron's line on the memory of one rank after some steps."""
    pieces = "".join(f" | {name}: {value}" for name, value in report.items())
    return f"[Rank {rank}] (after {steps} iterations) memory (GB){pieces}"
