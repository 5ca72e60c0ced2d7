"""CUDA graphs of Megatron Core, as set by `model.cuda_graph_impl`. Imports torch and megatron.

Two kinds support training: "transformer_engine" captures each layer, or the parts in `model.cuda_graph_modules`,
after some steps; "full_iteration" captures all forward and backward passes of a step in one graph. Without a GPU
nothing is captured. A run uses the functions of this file in this order:

1. `graph_resources`, a context manager around the complete run;
2. `wrapping_stream`, around the construction of the model;
3. `build_layer_graphs`, for the argument `cuda_graphs` of `mb_loop.train`;
4. `captured_schedule`, for the arguments of the schedule of `mb_loop.train`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from megatron.core import full_cuda_graph
from megatron.core.full_cuda_graph import (
    FullCudaGraphWrapper,
    StaticBufferLoader,
    get_shared_capture_stream,
)
from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    init_num_microbatches_calculator,
)
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

from mb_loop.graphs.capture import RecaptureOnChange
from mb_loop.settings import LoopSettings, ModelSettings, batch_plan
from mb_schema.cuda_graphs import FULL_ITERATION, captures_full_iteration

CAPTURED: dict[str, int] = {}
"""Microbatches of the captured graph by stage. Process-wide, because Megatron keeps the graphs in a class."""


class GraphSettings(ModelSettings, Protocol):
    """Fields on CUDA graphs that are read from section `model`."""

    @property
    def cuda_graph_impl(self) -> str:
        """Implementation: none, local, transformer_engine or full_iteration."""

    @property
    def cuda_graph_modules(self) -> object:
        """Captured modules, as text or a list; None: complete layers."""

    @property
    def cuda_graph_warmup_steps(self) -> int:
        """Steps before the capture."""


class GraphLoopSettings(LoopSettings, Protocol):
    """Sections of a run with CUDA graphs."""

    @property
    def model(self) -> GraphSettings:
        """Model, with its settings on graphs."""


class GraphedModel(Protocol):
    """Model that is captured, wrapped for data parallelism."""

    @property
    def chunks(self) -> Sequence[Any]:
        """Model chunks of this rank."""

    @property
    def optimizer(self) -> Any:
        """Megatron's optimizer."""

    @property
    def transformer(self) -> Any:
        """Megatron's configuration of the model."""

    @property
    def groups(self) -> Any:
        """Process groups."""

    @property
    def schedule(self) -> Mapping[str, Any]:
        """Arguments of `mb_loop.train` with Megatron's `forward_backward_func`."""


class GraphHelper(Protocol):
    """Capture helper for graphs of layers; implemented by Megatron's TECudaGraphHelper."""

    def create_cudagraphs(self) -> None:
        """Capture the graphs."""

    def cuda_graph_set_manual_hooks(self) -> None:
        """Register the hooks through which the graphs gather the parameters that they need."""

    def graphs_created(self) -> bool:
        """Return whether there are graphs."""

    def delete_cuda_graphs(self) -> None:
        """Delete the graphs."""


class LayerGraphs:
    """Graphs of layers, as the training loop captures them (`mb_loop.CudaGraphs`).

    Args:
        helper: captures the graphs.
        warmup_steps: steps before the capture.
    """

    def __init__(self, helper: GraphHelper, *, warmup_steps: int) -> None:
        self._helper = helper
        self._warmup_steps = warmup_steps

    @property
    def warmup_steps(self) -> int:
        """Number of steps before the capture."""
        return self._warmup_steps

    def capture(self) -> None:
        """Capture the graphs."""
        self._helper.create_cudagraphs()

    def set_manual_hooks(self) -> None:
        """Register the parameter gathering of the graphs."""
        self._helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        """Delete the graphs; there are none if no layer could be captured."""
        if self._helper.graphs_created():
            self._helper.delete_cuda_graphs()


def graph_kind(model: GraphSettings) -> str:
    """Return the graph implementation of this process: that of the section, or "none" without a GPU.

    Full-iteration graphs have an older spelling as well: "local" with the module "full_iteration".
    """
    if not torch.cuda.is_available():
        return "none"
    if captures_full_iteration(model.cuda_graph_impl, model.cuda_graph_modules):
        return FULL_ITERATION
    return model.cuda_graph_impl


def _new_stream() -> torch.cuda.Stream:
    """Return a new stream of the current device."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def graph_resources(cfg: GraphLoopSettings) -> Iterator[None]:
    """Prepare the process for graphs, and delete them at the end, because Megatron keeps some in its classes.

    Graphs of layers are captured on a side stream. The run therefore leaves the default stream from the start.
    """
    kind = graph_kind(cfg.model)
    with ExitStack() as stack:
        if kind == "transformer_engine":
            stack.enter_context(torch.cuda.stream(_new_stream()))
            stack.enter_context(largest_microbatch_count(cfg))
        if kind == FULL_ITERATION:
            stack.callback(drop_full_iteration_graphs)
        yield


@contextmanager
def largest_microbatch_count(cfg: LoopSettings) -> Iterator[None]:
    """Set Megatron's global number of microbatches, which its capture helper reads, to the maximum over all steps.

    Graphs of layers are captured for this number; a step with fewer microbatches uses the first graphs.
    """
    plan = batch_plan(cfg)
    destroy_num_microbatches_calculator()
    init_num_microbatches_calculator(
        rank=-1,  # rank 0 would print a line
        global_batch_size=max(plan.batches[size].samples for size in plan.sizes),
        micro_batch_size=cfg.train.micro_batch_size,
        data_parallel_size=cfg.data_parallel_size,
    )
    try:
        yield
    finally:
        destroy_num_microbatches_calculator()


@contextmanager
def wrapping_stream(model: GraphSettings) -> Iterator[None]:
    """Enter the stream on which models are wrapped for data parallelism: gradients arrive where graphs capture."""
    kind = graph_kind(model)
    if kind == "none":
        yield
        return
    stream = get_shared_capture_stream() if kind == FULL_ITERATION else _new_stream()
    # Both streams wait: wrapping reads weights that the current stream is still initializing, and later kernels there
    # read the buffers that it fills.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def build_layer_graphs(
    cfg: GraphLoopSettings,
    model: GraphedModel,
    *,
    helper: Callable[..., GraphHelper] = TECudaGraphHelper,
) -> LayerGraphs | None:
    """Return the layer graphs of a run; None if they are not enabled.

    Args:
        cfg: sections of the run.
        model: the wrapped model.
        helper: constructs the capture helper.
    """
    if graph_kind(cfg.model) != "transformer_engine":
        return None
    return LayerGraphs(
        helper(
            model=model.chunks,
            config=model.transformer,
            seq_length=cfg.model.seq_length,
            micro_batch_size=cfg.train.micro_batch_size,
            optimizers=[model.optimizer],
            pg_collection=model.groups,
        ),
        warmup_steps=cfg.model.cuda_graph_warmup_steps,
    )


def captured_schedule(cfg: GraphLoopSettings, model: GraphedModel) -> dict[str, Any]:
    """Return the schedule of a model for `mb_loop.train`, which runs as one graph if full-iteration graphs are enabled.

    Args:
        cfg: sections of the run.
        model: the wrapped model.
    """
    captured = capture_full_iteration(
        model.schedule["forward_backward_func"], cfg.model, transformer=model.transformer
    )
    return {**model.schedule, "forward_backward_func": captured}


def capture_full_iteration(
    schedule: Callable[..., Any], model: GraphSettings, *, transformer: Any
) -> Callable[..., Any]:
    """Return Megatron's schedule, which after its warm-up runs as one graph if full-iteration graphs are enabled.

    The graph is captured again when the number of microbatches changes.
    """
    if graph_kind(model) != FULL_ITERATION:
        return schedule
    wrapped = FullCudaGraphWrapper(
        schedule,
        cuda_graph_warmup_steps=model.cuda_graph_warmup_steps,
        use_single_mempool=transformer.cuda_graph_use_single_mempool,
    )
    return RecaptureOnChange(wrapped, drop_graph=drop_stage_graph, captured=CAPTURED)


def drop_stage_graph(stage: str) -> None:
    """Drop the graph and the result of "training" or "validation", so that Megatron warms up and captures again.

    The next capture uses a new memory pool: torch does not reuse a pool without graphs.
    """
    torch.cuda.synchronize()  # the last replay may still be running
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper, stage)  # reads no instance attribute
    full_cuda_graph._shared_graph_pool = None


def drop_full_iteration_graphs() -> None:
    """Drop the graphs, results and input buffers that Megatron keeps in its classes."""
    CAPTURED.clear()
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper)  # reads no instance attribute
    for buffers in StaticBufferLoader.static_buffers.values():
        buffers.clear()
