"""Environment variables of a training job for each GPU generation. The standard library only.

They are those that Megatron-Bridge's performance scripts set for every model. Variables that depend on the parallel
layout, such as CUDA_DEVICE_MAX_CONNECTIONS, are set by the trainer itself, which knows the layout.
"""

import re
from collections.abc import Mapping

COMMON: Mapping[str, str] = {
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TOKENIZERS_PARALLELISM": "False",
}
"""Variables on every GPU: less memory kept for collectives, their streams before others, no NVLink SHARP buffers, and
no warning of tokenizers in forked processes."""

GRACE: Mapping[str, str] = {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}
"""Variables on Grace systems, whose network cards reach the GPU through the CPU: NCCL 2.25, and 2.26 and newer."""

GRACE_GPUS = frozenset({"gh200", "gb200", "gb300"})


def gpu_environment(gpu: str | None) -> dict[str, str]:
    """Return the variables for a GPU, given as "gb200" or as nvidia-smi prints it; none without one."""
    if gpu is None:
        return {}
    words = set(re.split(r"[^a-z0-9]+", gpu.lower()))
    return {**COMMON, **(GRACE if words & GRACE_GPUS else {})}
