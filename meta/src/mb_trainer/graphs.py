"""CUDA graphs of a run, as set by `model.cuda_graph_impl`. Imports torch and megatron.

Two kinds support training: "transformer_engine" captures each layer, or the parts in `model.cuda_graph_modules`,
after some steps; "full_iteration" captures all forward and backward passes of a step in one graph. Without a GPU
nothing is captured.
"""

from collections.abc import Callable, Iterator
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
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

from mb_config.rules.cuda_graphs import full_iteration
from mb_loop.microbatches import BatchPlan
from mb_loop.recapture import RecaptureOnChange
from mb_trainer.config import ConfigContainer
from mb_trainer.trainee import Trainee

LAYERS, STEP = "transformer_engine", "full_iteration"

CAPTURED: dict[str, int] = {}
"""Microbatches of the captured graph by stage. Process-wide, because Megatron keeps the graphs in a class."""


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
    """Graphs of layers, as the training loop captures them.

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


def wanted(config: ConfigContainer) -> str:
    """Return the graph implementation of this process: that of the section, or "none" without a GPU.

    Full-iteration graphs have an older spelling as well: "local" with the module "full_iteration".
    """
    if not torch.cuda.is_available():
        return "none"
    model = config.model
    whole = full_iteration(model.cuda_graph_impl, model.cuda_graph_modules, None)
    return STEP if whole else model.cuda_graph_impl


def new_stream() -> torch.cuda.Stream:
    """Return a new stream of the current device."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def graphs_of_this_process(config: ConfigContainer) -> Iterator[None]:
    """Prepare the process for graphs, and delete them at the end, because Megatron keeps some in its classes.

    Graphs of layers are captured on a side stream. The run therefore leaves the default stream from the start.
    """
    kind = wanted(config)
    with ExitStack() as stack:
        if kind == LAYERS:
            stack.enter_context(torch.cuda.stream(new_stream()))
            stack.enter_context(counted_microbatches(config))
        if kind == STEP:
            stack.callback(forget_graph_of_step)
        yield


@contextmanager
def counted_microbatches(config: ConfigContainer) -> Iterator[None]:
    """Set Megatron's global number of microbatches, which its capture helper reads, to the maximum over all steps.

    Graphs of layers are captured for this number; a step with fewer microbatches uses the first graphs.
    """
    destroy_num_microbatches_calculator()
    init_num_microbatches_calculator(
        rank=-1,  # rank 0 would print a line
        global_batch_size=largest_batch(config),
        micro_batch_size=config.train.micro_batch_size,
        data_parallel_size=config.data_parallel_size,
    )
    try:
        yield
    finally:
        destroy_num_microbatches_calculator()


def largest_batch(config: ConfigContainer) -> int:
    """Return the global batch size of the largest step, rounded down if the run rounds down."""
    train = config.train
    plan = BatchPlan.of(
        train.global_batch_size or 0,
        micro_batch_size=train.micro_batch_size or 0,
        data_parallel_size=config.data_parallel_size or 1,
        rampup_batch_size=train.rampup_batch_size,
        step_batch_size_schedule=train.step_batch_size_schedule,
        seq_length=config.model.seq_length,
        decrease_batch_size_if_needed=train.decrease_batch_size_if_needed,
    )
    return max(plan.batches[size].samples for size in plan.sizes)


def forget_graph_of_stage(stage: str) -> None:
    """Drop the graph and the result of "training" or "validation", so that Megatron warms up and captures again.

    The next capture uses a new memory pool: torch does not reuse a pool without graphs.
    """
    torch.cuda.synchronize()  # the last replay may still be running
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper, stage)  # reads no instance attribute
    full_cuda_graph._shared_graph_pool = None


def forget_graph_of_step() -> None:
    """Drop the graphs, results and input buffers that Megatron keeps in its classes."""
    CAPTURED.clear()
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper)  # reads no instance attribute
    for buffers in StaticBufferLoader.static_buffers.values():
        buffers.clear()


@contextmanager
def stream_of_wrapping(config: ConfigContainer) -> Iterator[None]:
    """Enter the stream on which models are wrapped for data parallelism: gradients arrive where graphs capture."""
    kind = wanted(config)
    if kind == "none":
        yield
        return
    stream = get_shared_capture_stream() if kind == STEP else new_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def graphs_of_layers(
    config: ConfigContainer,
    trainee: Trainee,
    *,
    groups: ProcessGroupCollection,
    helper: Callable[..., GraphHelper] = TECudaGraphHelper,
) -> LayerGraphs | None:
    """Return the layer graphs of a run; None if they are not enabled."""
    if wanted(config) != LAYERS:
        return None
    return LayerGraphs(
        helper(
            model=trainee.chunks,
            config=trainee.transformer,
            seq_length=config.model.seq_length,
            micro_batch_size=config.train.micro_batch_size,
            optimizers=[trainee.optimizer],
            pg_collection=groups,
        ),
        warmup_steps=config.model.cuda_graph_warmup_steps,
    )


def in_one_graph(
    schedule: Callable[..., Any], config: ConfigContainer, transformer: Any
) -> Callable[..., Any]:
    """Return Megatron's schedule, which after its warm-up runs as one graph if full-iteration graphs are enabled.

    The graph is captured again when the number of microbatches changes.
    """
    if wanted(config) != STEP:
        return schedule
    wrapped = FullCudaGraphWrapper(
        schedule,
        cuda_graph_warmup_steps=config.model.cuda_graph_warmup_steps,
        use_single_mempool=transformer.cuda_graph_use_single_mempool,
    )
    return RecaptureOnChange(wrapped, drop_graph=forget_graph_of_stage, captured=CAPTURED)
