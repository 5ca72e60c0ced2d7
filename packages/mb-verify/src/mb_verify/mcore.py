"""Values of a rank of a Megatron Core run, as text or hashes. Imports torch and megatron."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.tensor_parallel.random import convert_cuda_rng_state, get_cuda_rng_tracker
from megatron.core.utils import get_attr_wrapped_model

from mb_verify.record.torch_state import digest, exact_number, read_random_streams, setting

PARALLEL_LISTS = (
    ("float16_groups", "fp32_from_float16_groups"),
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_float16_groups", "shard_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
)
"""Lists of Megatron's optimizers that run in parallel: parameters of the model, and what is updated for them."""


class MegatronReader:
    """Reader of one rank's state, and of the microbatches that it reads.

    Args:
        context: argument of `on_train_start`: `model` (chunks), `optimizer`, `scheduler` and `state.train_state`;
            in `on_train_microbatch` also `microbatch` and `chunk`, in `on_train_step_end` `result` (losses, grad_norm,
            num_zeros_in_grad, learning_rate, skipped).
    """

    def __init__(self, context: Any) -> None:
        self._sequences: dict[str, list[str]] = {}
        names = parameter_names(context.model)
        self._names = {id(parameter): name for name, parameter in names.items()}
        groups = get_attr_wrapped_model(context.model[0], "pg_collection")
        self.reads_data = groups.tp.rank() == groups.cp.rank() == groups.pp.rank() == 0
        """Whether this rank is the first of those that read the same sequences."""

    def state(self, context: Any, *, complete: bool = False) -> dict[str, str]:
        """Return counters, random streams, optimizer state and parameters. Synchronises with the device.

        With overlapped parameter gathering a parameter is complete only within a step, so that `step` returns it,
        unless `complete`.
        """
        self._sequences.clear()
        values = {**counters(context), **read_all_random_streams()}
        for name, value in optimizer_state(context.optimizer, self._names):
            values[f"optimizer: {name}"] = value
        if complete or not gathers_late(context):
            values |= self._parameters(context.model)
        return values

    def microbatch(self, context: Any) -> None:
        """Hash the sequences of a microbatch: of each of its tensors the rows."""
        batch = context.microbatch
        named = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for name, tensor in named:
            if isinstance(tensor, torch.Tensor):
                hashes = self._sequences.setdefault(f"{name} of chunk {context.chunk}", [])
                hashes.append(",".join(map(digest, tensor if tensor.dim() else [tensor])))

    def step(self, context: Any) -> dict[str, str]:
        """Return what a step read and computed. Synchronises with the device."""
        result = context.result
        if result is None:
            return {}
        values = {f"samples: {name}": " ".join(hashes) for name, hashes in self._sequences.items()}
        self._sequences.clear()
        values |= {f"losses: {name}": exact_number(loss) for name, loss in result.losses.items()}
        values["gradient norm: of all parameters"] = exact_number(result.grad_norm)
        values["gradient norm: zeros"] = exact_number(result.num_zeros_in_grad)
        values["learning rate: of the step"] = exact_number(result.learning_rate)
        values["counters: update skipped"] = str(bool(result.skipped))
        return values | (self._parameters(context.model) if gathers_late(context) else {})

    def _parameters(self, model: Sequence[Any]) -> dict[str, str]:
        return {
            f"parameters: {name}": digest(parameter) for name, parameter in parameter_names(model).items()
        }


def parameter_names(model: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of all chunks by name."""
    tensors: dict[str, torch.Tensor] = {}
    for index, chunk in enumerate(model):
        prefix = f"chunk {index} " if len(model) > 1 else ""
        for name, tensor in (*parameters_of(chunk), *chunk.named_buffers()):
            tensors[prefix + name.removeprefix("module.").removeprefix("module.")] = tensor
    return tensors


def parameters_of(chunk: Any) -> Sequence[tuple[str, torch.Tensor]]:
    """Return a chunk's parameters by name; of Megatron-FSDP's the shards, which are always there."""
    if isinstance(chunk, FullyShardedDataParallel):
        return list(chunk.param_and_grad_buffer.optimizer_named_parameters)
    return list(chunk.named_parameters())


def gathers_late(context: Any) -> bool:
    """Return whether updated parameters are gathered in the next forward pass."""
    return any(bool(chunk.ddp_config.overlap_param_gather) for chunk in context.model)


def counters(context: Any) -> dict[str, str]:
    """Return the run's counters, and the scheduler's."""
    values = {
        f"counters: {name}": str(value) for name, value in context.state.train_state.state_dict().items()
    }
    if context.scheduler is not None:
        for name, value in context.scheduler.state_dict().items():
            values[f"learning rate: scheduler {name}"] = str(value)
    return values


def read_all_random_streams() -> dict[str, str]:
    """Return a hash for each random generator of this process, Megatron's tensor-parallel tracker included."""
    values = read_random_streams()
    for name, state in get_cuda_rng_tracker().get_states().items():
        values[f"random streams: tracker {name}"] = digest(convert_cuda_rng_state(state))
    return values


def optimizer_state(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Yield each tensor and setting of an optimizer, with the name of the parameter that it belongs to."""
    parts = vars(optimizer).get("chained_optimizers", [optimizer])  # only Megatron's chain has the list
    for part_number, part in enumerate(parts):
        prefix = f"part {part_number} " if len(parts) > 1 else ""
        owners = {**names, **names_of_copies(part, names)}
        # Megatron's wrap torch's; None on a rank that trains nothing.
        inner = vars(part).get("optimizer", part)
        if inner is None:
            continue
        scaler = vars(part).get("grad_scaler")
        if scaler is not None:
            yield (
                f"{prefix}loss scaler",
                repr(sorted((k, exact_number(v)) for k, v in scaler.state_dict().items())),
            )
        for number, group in enumerate(inner.param_groups):
            counted = any("step" in inner.state.get(parameter, {}) for parameter in group["params"])
            for name, value in group.items():
                # Megatron's load leaves a copy there.
                if name != "params" and not (name == "step" and counted):
                    yield f"{prefix}group {number} {name}", setting(value)
            for index, parameter in enumerate(group["params"]):
                owner = owners.get(id(parameter), f"group {number} parameter {index}")
                if id(parameter) not in names:
                    yield f"{prefix}main copy of {owner}", digest(parameter)
                for name, value in inner.state.get(parameter, {}).items():
                    yield f"{prefix}{name} of {owner}", setting(value)


def names_of_copies(part: Any, names: Mapping[int, str]) -> dict[int, str]:
    """Return names for the copies and shards that an optimizer updates instead of parameters."""
    name_of_copy: dict[int, str] = {}
    lists = vars(part)
    for ours, theirs in PARALLEL_LISTS:
        for parameters, copies in zip(lists.get(ours) or [], lists.get(theirs) or [], strict=False):
            for parameter, copy in zip(parameters, copies, strict=False):
                if copy is not None and id(parameter) in names:
                    name_of_copy[id(copy)] = names[id(parameter)]
    return name_of_copy
