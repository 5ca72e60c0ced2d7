"""Parallel layouts of a model on a number of GPUs, as values to sweep over."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mb_plan.sweep.grid import Axis
from mb_schema.rules import value_at

TENSOR = "model.tensor_model_parallel_size"
SEQUENCE = "model.sequence_parallel"
LONGEST_CONTEXT = 8
"""Largest context-parallel size, unless the model has a larger one."""
SHORTEST_PART = 2048
"""Tokens below which a sequence is not split further over ranks: attention would wait for communication."""
MICRO_BATCHES = (1, 2, 4)


def layout_axes(model: Any, *, world_size: int, node_gpus: int, is_kept: Callable[[str], bool]) -> list[Axis]:
    """Return the parallel sizes that can be worth a try, as values of fields; rules reject impossible combinations.

    Sizes are powers of two: tensor parallelism within a node and by the attention heads, pipeline stages by the
    layers, context parallelism by the length of the sequence, expert parallelism by the experts; with micro-batch
    sizes of 1, 2 and 4.

    Args:
        model: Section of the model, or its fields as a mapping.
        world_size: GPUs of the run.
        node_gpus: GPUs that NVLink connects.
        is_kept: Whether a field keeps its value, because the user set it.
    """
    layers, heads = _size(model, "num_layers", 1), _size(model, "num_attention_heads", 1)
    length, experts = _size(model, "seq_length", SHORTEST_PART), _size(model, "num_moe_experts", 0)
    tensor = [size for size in powers_of_two(min(node_gpus, world_size)) if heads % size == 0]
    stages = list(powers_of_two(min(world_size, layers)))
    context = [
        size
        for size in powers_of_two(min(world_size, LONGEST_CONTEXT))
        if size == 1 or (length % (2 * size) == 0 and length // size >= SHORTEST_PART)
    ]
    virtual = [size for size in divisors(layers) if 1 < size <= layers // 2]
    values: dict[str, list[Any]] = {
        TENSOR: tensor,
        SEQUENCE: [True, False],
        "model.pipeline_model_parallel_size": stages,
        "model.virtual_pipeline_model_parallel_size": [None, *virtual],
        "model.context_parallel_size": context,
        "train.micro_batch_size": list(MICRO_BATCHES),
    }
    if experts:
        values["model.expert_model_parallel_size"] = [
            size for size in powers_of_two(min(world_size, experts)) if experts % size == 0
        ]
    return [
        Axis(path=path, values=tuple(sizes))
        for path, sizes in values.items()
        if len(sizes) > 1 and not is_kept(path)
    ]


def _size(model: object, name: str, default: int) -> int:
    """Return a size of the model; `default` if it is not set."""
    value = value_at(f"model.{name}", {"model": model})
    return value if isinstance(value, int) else default


def splits_sequences_where_possible(values: Mapping[str, Any]) -> bool:
    """Return False for a point with tensor parallelism alone: with sequence parallelism it needs less memory."""
    return bool(values.get(SEQUENCE, True)) or values.get(TENSOR, 1) == 1


def powers_of_two(largest: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... up to `largest`."""
    size = 1
    while size <= largest:
        yield size
        size *= 2


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in order."""
    return [size for size in range(1, number + 1) if number % size == 0]
