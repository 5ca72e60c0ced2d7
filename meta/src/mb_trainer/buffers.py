"""Transformer Engine's user buffers, which overlap tensor-parallel communication with GEMMs. No torch."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

from mb_overlap import initialize_ub_arguments
from mb_overlap.te_versions import NEWEST, format_version
from mb_trainer.config import ConfigContainer
from mb_trainer.machine import installed_version


def start_user_buffers(
    config: ConfigContainer,
    *,
    release: str | None = None,
    initialize: Callable[[Mapping[str, Any]], None] | None = None,
) -> bool:
    """Start the buffers if `model.tp_comm_overlap` is on; return whether it is. Collective over the world in that case.

    Call this after the process groups are created and before the model is built: its layers look up their buffers
    when they are constructed.

    Args:
        config: resolved configuration.
        release: version of Transformer Engine; None: the installed one.
        initialize: replaces `mb_overlap.te.initialize_user_buffers`, which imports Transformer Engine.

    Raises:
        mb_overlap.BufferSettingsError: the shape cannot be split, or the settings do not fit this version.
    """
    model = config.model
    if not getattr(model, "tp_comm_overlap", False):  # families that do not support it have no such field
        return False
    modes: list[Literal["FP8", "NONE"]] = ["FP8"] if model.fp8 else ["NONE"]
    if model.fp8 and model.first_last_layers_bf16:
        modes.append("NONE")
    arguments = initialize_ub_arguments(
        seq_length=model.seq_length,
        micro_batch_size=config.train.micro_batch_size or 1,
        hidden_size=model.hidden_size,
        tp=model.tensor_model_parallel_size,
        cp=model.context_parallel_size,
        release=release
        or installed_version("transformer_engine", "transformer-engine")
        or format_version(NEWEST),
        settings=model.tp_comm_overlap_cfg,
        quantization_modes=modes,
    )
    if model.tp_comm_bootstrap_backend is not None:
        arguments["bootstrap_backend"] = model.tp_comm_bootstrap_backend
    start = initialize or import_module("mb_overlap.te").initialize_user_buffers  # imports Transformer Engine
    start(arguments)
    return True
