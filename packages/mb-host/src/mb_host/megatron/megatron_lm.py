"""Megatron-LM's training code (`megatron.training` of the installed wheel) on a machine without a GPU.

Call `mb_host.install()` before megatron is imported. Importing this module imports megatron.
"""

import os
from unittest import mock

import torch
from megatron.training import initialize

HOST_FLAGS = (
    *("--distributed-backend", "gloo"),
    *("--transformer-impl", "local"),
    "--no-gradient-accumulation-fusion",
    "--no-masked-softmax-fusion",
    "--no-bias-dropout-fusion",
    "--no-bias-gelu-fusion",
    "--no-bias-swiglu-fusion",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
)
"""Flags of Megatron-LM without which it requires kernels for a GPU."""

ENVIRONMENT = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""Environment variables of a run with one process, and the one that Megatron-LM requires for tensor parallelism."""


def initialize_megatron() -> None:
    """Call `initialize_megatron` of Megatron-LM without requiring CUDA and without compiling the dataset helpers.

    The wheel of megatron-core contains the helpers; a compilation requires make, a compiler and a writable
    installation. Collective over the world. Megatron's arguments must be set, for example by `set_global_variables`.
    """
    with mock.patch.object(initialize, "_compile_dependencies", torch.distributed.barrier):
        initialize.initialize_megatron(allow_no_cuda=True)


def set_default_environment() -> None:
    """Set the variables of `ENVIRONMENT` that the launcher has not set. Call it before arguments are parsed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
