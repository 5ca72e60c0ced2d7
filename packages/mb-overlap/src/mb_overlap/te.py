"""Start Transformer Engine's user buffers. The one file that imports Transformer Engine."""

from collections.abc import Mapping
from typing import Any

from transformer_engine.pytorch.module import base


def initialize_user_buffers(arguments: Mapping[str, Any]) -> None:
    """Call `initialize_ub`. Collective over all ranks; needs a GPU, and torch.distributed to be started.

    Call it once, before the model is built, where `model.tp_comm_overlap` is on.

    Args:
        arguments: as `mb_overlap.initialize_ub_arguments` returns them for the installed release.
    """
    taken = dict(arguments)
    if "quantization_modes" in taken:
        taken["quantization_modes"] = [
            base.UserBufferQuantizationMode[name] for name in taken["quantization_modes"]
        ]
    base.initialize_ub(**taken)
