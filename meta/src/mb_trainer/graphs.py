"""CUDA graphs of a run, as `model.cuda_graph_impl` asks for them. Imports torch and megatron.

Two kinds train: "transformer_engine" captures each layer, or the parts that `model.cuda_graph_modules` names, after
some steps; "full_iteration" captures all passes of a step in one graph. Where there is no GPU, nothing is captured.
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
"""Stage -> microbatches of the graph that Megatron keeps for it in a class, and so for the whole process."""


class GraphHelper(Protocol):
    """What captures the graphs of layers: Megatron's TECudaGraphHelper."""

    def create_cudagraphs(self) -> None:
        """Capture."""

    def cuda_graph_set_manual_hooks(self) -> None:
        """Let the graphs gather the parameters that they need."""

    def graphs_created(self) -> bool:
        """Say whether there are graphs."""

    def delete_cuda_graphs(self) -> None:
        """Let go of them."""


class LayerGraphs:
    """Graphs of layers, as the training loop captures them.

    Args:
        helper: does it.
        warmup_steps: to be made before.
    """

    def __init__(self, helper: GraphHelper, *, warmup_steps: int) -> None:
        self._helper = helper
        self._warmup_steps = warmup_steps

    @property
    def warmup_steps(self) -> int:
        """Steps to be made before the capture."""
        return self._warmup_steps

    def capture(self) -> None:
        """Capture."""
        self._helper.create_cudagraphs()

    def set_manual_hooks(self) -> None:
        """Put the gathering of parameters into the graphs."""
        self._helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        """Let go of the graphs; there are none where no layer could be captured."""
        if self._helper.graphs_created():
            self._helper.delete_cuda_graphs()


def wanted(config: ConfigContainer) -> str:
    """Return what captures graphs in this process: the implementation of the section, "none" without a GPU.

    The whole step may be asked for in the older way, too: "local" with the module "full_iteration".
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
    """Prepare the process for graphs, and forget them at the end: Megatron keeps some in its classes.

    Graphs of layers are captured beside the default stream, so that the run leaves it from the start.
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
    """Set Megatron's global number of microbatches, which its helper reads, to the largest of any step.

    Graphs of layers are captured for so many; a step with fewer uses the first of them.
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
    """Return the sequences of the largest step of a run, rounded down where the run rounds down."""
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

    The next capture has a memory pool of its own: torch does not reuse a pool that has no graph left.
    """
    torch.cuda.synchronize()  # the last replay may still run
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper, stage)  # it uses nothing of an instance
    full_cuda_graph._shared_graph_pool = None


def forget_graph_of_step() -> None:
    """Drop the graphs, results and input buffers that Megatron keeps in its classes."""
    CAPTURED.clear()
    FullCudaGraphWrapper.reset_cuda_graph(FullCudaGraphWrapper)  # it uses nothing of an instance
    for buffers in StaticBufferLoader.static_buffers.values():
        buffers.clear()


@contextmanager
def stream_of_wrapping(config: ConfigContainer) -> Iterator[None]:
    """Be on the stream on which models are wrapped for data parallelism: gradients then arrive where graphs capture."""
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
    """Return what captures the graphs of layers; None where they are not asked for."""
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
    """Return Megatron's schedule, which after its warm-up runs as one graph where that is asked for.

    A graph is captured again when the number of microbatches changes.
    """
    if wanted(config) != STEP:
        return schedule
    wrapped = FullCudaGraphWrapper(
        schedule,
        cuda_graph_warmup_steps=config.model.cuda_graph_warmup_steps,
        use_single_mempool=transformer.cuda_graph_use_single_mempool,
    )
    return RecaptureOnChange(wrapped, drop_graph=forget_graph_of_stage, captured=CAPTURED)
