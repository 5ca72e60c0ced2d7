"""Initialization of Transformer Engine's user buffers. The only module that imports Transformer Engine."""

from collections.abc import Mapping
from typing import Any

from transformer_engine.pytorch.module import base


def initialize_user_buffers(arguments: Mapping[str, Any]) -> None:
    """Call `initialize_ub`. Collective over all ranks; requires a GPU and an initialized torch.distributed.

    Call it once, before the model is built, if `model.tp_comm_overlap` is on.

    Args:
        arguments: arguments from `mb_overlap.initialize_ub_arguments` for the installed release.
    """
    te_arguments = dict(arguments)
    if "quantization_modes" in te_arguments:
        te_arguments["quantization_modes"] = [
            base.UserBufferQuantizationMode[name] for name in te_arguments["quantization_modes"]
        ]
    base.initialize_ub(**te_arguments)
