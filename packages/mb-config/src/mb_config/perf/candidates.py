"""Settings whose fastest value depends on the machine, and which train the same model. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mb_config.container.field_access import get_field, has_field
from mb_config.perf.target import PerfTarget

Overrides = tuple[str, ...]
Chain = tuple[Overrides, ...]
"""Values of a setting, as overrides. A later one is only of use if the one before made the run faster."""


def tunable(config: Any, *, target: PerfTarget | None, cpus: int, replicas: int) -> Iterator[Chain]:
    """Yield the alternatives to the settings of a configuration, those that matter most first.

    Args:
        config: Resolved sections.
        target: GPU and configuration, as the settings of `perf` read them; None: there is no GPU.
        cpus: Processors of the machine.
        replicas: Data-parallel size.
    """
    yield from _microbatches(config, replicas=replicas)
    if target is not None:
        yield from ((overrides,) for overrides in _kernels(target))
    if has_field(config, "dataset.num_workers"):
        own = get_field(config, "dataset.num_workers")
        counts = (count for count in (0, 1, 2, 4, 8) if count <= cpus and count != own)
        yield from (((f"dataset.num_workers={count}",),) for count in counts)


def _microbatches(config: Any, *, replicas: int) -> Iterator[Chain]:
    """Yield microbatches of larger and smaller sizes: powers of two that divide the share of a replica."""
    own, total = config.train.micro_batch_size, config.train.global_batch_size
    if not own or not total or get_field(config, "dataset.packed_sequence_specs"):  # a pack is one row
        return
    share = total // replicas
    powers = [2**power for power in range(share.bit_length())]
    sizes = [size for size in powers if share % size == 0]
    larger = [size for size in sizes if size > own]
    smaller = [size for size in reversed(sizes) if size < own]
    for chain in (larger, smaller):
        if chain:
            yield tuple((f"train.micro_batch_size={size}",) for size in chain)


def _kernels(target: PerfTarget) -> Iterator[Overrides]:
    """Yield the other CUDA graphs and the fused kernels that a model on Transformer Engine could use."""
    if not target.engine:
        return
    if target.one_layout:
        random = ("model.use_te_rng_tracker=true", "rng.te_rng_tracker=true")
        graphs = {"none": (), "transformer_engine": random, "full_iteration": random}
        implementation = target.model("cuda_graph_impl") or "none"
        yield from (
            (f"model.cuda_graph_impl={name}", *needed)
            for name, needed in graphs.items()
            if name != implementation
        )
    if target.model("position_embedding_type") == "rope" and target.model("apply_rope_fusion"):
        yield ("++model.transformer.fused_single_qkv_rope=true",)
    if target.model("normalization") == "RMSNorm":
        yield ("model.fused_residual_rmsnorm=true",)
    yield "model.bias_activation_fusion=false", "++model.transformer.use_te_activation_func=true"
    yield ("++model.transformer.use_transformer_engine_op_fuser=true",)
