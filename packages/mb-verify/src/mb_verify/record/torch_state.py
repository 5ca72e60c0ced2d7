"""Values of a plain PyTorch loop: parameters, optimizer, random streams, as text or hashes. Imports torch."""

import ctypes
import hashlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from mb_schema.versions import installed_versions


def read_torch_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    scheduler: Any = None,
    counters: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Return the values to record between two steps. Synchronises with the device.

    They contain the random streams of Python, torch and, where it is imported, numpy: seed all of them, used or not,
    because one without a seed differs in every run.

    Args:
        model: its parameters and buffers are hashed.
        optimizer: its state and settings are hashed.
        scheduler: learning rate scheduler with a `state_dict`, or None.
        counters: numbers of the loop, such as steps and consumed samples.
    """
    values = {f"counters: {name}": str(value) for name, value in (counters or {}).items()}
    values |= read_random_streams()
    if scheduler is not None:
        for name, value in scheduler.state_dict().items():
            values[f"learning rate: scheduler {name}"] = str(value)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                values[f"optimizer: group {number} {name}"] = setting(value)
        for index, parameter in enumerate(group["params"]):
            owner = names.get(id(parameter), f"group {number} parameter {index}")
            for name, value in optimizer.state.get(parameter, {}).items():
                values[f"optimizer: {name} of {owner}"] = setting(value)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values[f"parameters: {name}"] = digest(tensor)
    return values


def read_torch_step(
    *,
    losses: Mapping[str, object],
    samples: Mapping[str, torch.Tensor] | None = None,
    grad_norm: object = None,
    learning_rate: object = None,
) -> dict[str, str]:
    """Return the values to record of a step. Synchronises with the device.

    Args:
        losses: name -> number or tensor of one element.
        samples: name -> batch, sequences along the first dimension.
        grad_norm: norm of all gradients; None leaves it out.
        learning_rate: learning rate of the step; None leaves it out.
    """
    values = {f"samples: {name}": ",".join(map(digest, batch)) for name, batch in (samples or {}).items()}
    values |= {f"losses: {name}": exact_number(loss) for name, loss in losses.items()}
    if grad_norm is not None:
        values["gradient norm: of all parameters"] = exact_number(grad_norm)
    if learning_rate is not None:
        values["learning rate: of the step"] = exact_number(learning_rate)
    return values


def read_random_streams() -> dict[str, str]:
    """Return a hash for each random generator of this process: Python, numpy where imported, torch, current GPU."""
    states: dict[str, object] = {
        "random_rng_state": random.getstate(),
        "torch_rng_state": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *counters = numpy.random.get_state()
        states["np_rng_state"] = (name, keys.tolist(), *counters)
    if torch.cuda.is_available():
        states["cuda_rng_state"] = torch.cuda.get_rng_state()
    return {f"random streams: {name}": digest(state) for name, state in states.items()}


def conditions() -> dict[str, str]:
    """Return conditions that the bits of a run depend on in addition to its settings: device, threads, versions."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        **installed_versions("megatron-core", "numpy"),
    }


def setting(value: object) -> str:
    """Return a tensor's hash, a single number with all digits, anything else as text."""
    return digest(value) if isinstance(value, torch.Tensor) and value.numel() > 1 else exact_number(value)


def exact_number(value: object) -> str:
    """Return a number with all its digits, also a tensor of one element on a device."""
    return repr(value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value)


def digest(value: object) -> str:
    """Return a hash of 16 hexadecimal digits: of dtype, shape and bits of a tensor or shard, or of a value's text."""
    if not isinstance(value, torch.Tensor):
        return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
    local = value.detach()
    local = local.to_local() if isinstance(local, DTensor) else local
    hashed = hashlib.blake2b(f"{local.dtype} {tuple(local.shape)}".encode(), digest_size=8)
    flat = local.cpu().contiguous().reshape(-1)
    size = flat.numel() * flat.element_size()
    if size:  # not through numpy, which torch does not require
        hashed.update((ctypes.c_ubyte * size).from_address(flat.data_ptr()))
    return hashed.hexdigest()
