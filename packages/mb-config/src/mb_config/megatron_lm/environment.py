"""Environment variables that a script of Megatron-LM sets for its training."""

import re
from collections.abc import Mapping

from mb_config.megatron_lm.shell.expansion import MARK
from mb_config.rules.environment import loads_code

_SETTINGS = re.compile(
    r"(NCCL|NVTE|NVSHMEM|CUDA|CUBLAS|CUDNN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|UCX|UB|GLOO|OMP|MKL|TOKENIZERS|HF|IB)_\w+"
)
"""Variables that libraries of a training process read."""

_OF_THE_LAUNCHER = re.compile(
    r"MASTER_\w+|(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES"
)
_ATTENTION = {"flash": "NVTE_FLASH_ATTN", "fused": "NVTE_FUSED_ATTN", "unfused": "NVTE_UNFUSED_ATTN"}
"""Backend of `--attention-backend` -> variable that excludes it if it is 0. Megatron Core sets all three."""
_SECRET = re.compile(r"\w*(KEY|TOKEN|SECRET|PASSWORD)")


def attention_backend(environment: Mapping[str, str]) -> str | None:
    """Return the `--attention-backend` of a script that excludes FlashAttention or cuDNN by variables, else None.

    Without that flag, Megatron-LM rejects such variables.
    """
    allowed = [backend for backend, name in _ATTENTION.items() if environment.get(name) != "0"]
    return allowed[0] if allowed and not {"flash", "fused"} <= {*allowed} else None


def carried_variables(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables for the section `env_vars`, and the other ones with the reason why they are not carried."""
    carried: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, value in environment.items():
        if MARK.search(value):
            named[name] = "its value is not known without running the script"
        elif _OF_THE_LAUNCHER.fullmatch(name):
            named[name] = "the launcher sets it"
        elif name in _ATTENTION.values():
            named[name] = "model.attention_backend sets it"
        elif _SECRET.fullmatch(name):
            named[name] = "a secret; set it in the shell"
        elif loads_code({name: value}):
            named[name] = "it loads code; set it in the shell"
        elif _SETTINGS.fullmatch(name):
            carried[name] = value
        else:
            named[name] = "no library of the training reads it; set it in the shell if custom code does"
    return carried, named
