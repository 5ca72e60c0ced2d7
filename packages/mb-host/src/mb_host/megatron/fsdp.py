"""Adaptation of torch's FSDP2 and of Megatron-FSDP to the CPU."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from mb_host.cpu.device import HOST, is_cuda_device
from mb_host.megatron.kernels import rearrange


def replace_meshes() -> None:
    """Create device meshes of CUDA devices on the CPU; shards follow their mesh."""
    initialise = DeviceMesh.__init__

    @functools.wraps(initialise)
    def on_host(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        initialise(self, HOST.type if is_cuda_device(device_type) else device_type, *args, **kwargs)

    mesh: Any = DeviceMesh
    mesh.__init__ = on_host


def stand_in_for_adapter(adapter: ModuleType) -> None:
    """Add the function of einops that Megatron-FSDP uses to order ranks; no effect if einops is installed."""
    names = adapter.__dict__
    if not names["HAVE_EINOPS"]:
        names.update(HAVE_EINOPS=True, einops=SimpleNamespace(rearrange=rearrange))


def stand_in_for_reductions(buffers: ModuleType) -> None:
    """Make Megatron-FSDP scale gradients before it sums them; the fused operation requires NCCL."""
    names = buffers.__dict__
    prepare = names["gradient_reduce_preprocessing"]

    @functools.wraps(prepare)
    def scale_first(
        gradients: torch.Tensor, scaling_factor: float | None, ddp_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        unfused = replace(ddp_config, gradient_reduce_div_fusion=False)
        return prepare(gradients, scaling_factor, unfused, *args, **kwargs)

    names["gradient_reduce_preprocessing"] = scale_first


STAND_INS: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {
        "megatron.core.distributed.fsdp.mcore_fsdp_adapter": stand_in_for_adapter,
        "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer": stand_in_for_reductions,
    }
)
"""Megatron module -> function that adapts it to the CPU, right after its import."""
