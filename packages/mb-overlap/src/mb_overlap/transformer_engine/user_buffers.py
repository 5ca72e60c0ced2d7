"""Initialization of Transformer Engine's user buffers. Imports Transformer Engine only if they are enabled."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, Protocol

from mb_overlap.software_versions import detect_versions
from mb_overlap.transformer_engine.arguments import initialize_ub_arguments
from mb_overlap.transformer_engine.te_versions import NEWEST_VERSION


class UserBufferModel(Protocol):
    """Fields that are read from section `model`. A family without `tp_comm_overlap` uses no user buffers."""

    @property
    def seq_length(self) -> int:
        """Tokens in a sequence."""

    @property
    def hidden_size(self) -> int:
        """Width of the model."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Ranks that share each layer."""

    @property
    def context_parallel_size(self) -> int:
        """Ranks that share each sequence."""

    @property
    def fp8(self) -> str | None:
        """FP8 format of the layers; None: no FP8."""

    @property
    def first_last_layers_bf16(self) -> bool:
        """Whether the outer layers of an FP8 model remain in bfloat16."""

    @property
    def tp_comm_overlap_cfg(self) -> Any:
        """Settings of each GEMM, as an object of this package or a mapping; None: Transformer Engine's defaults."""

    @property
    def tp_comm_bootstrap_backend(self) -> str | None:
        """Backend of the collectives that set up the buffers; None: Transformer Engine's choice."""


def start_user_buffers(
    model: UserBufferModel,
    *,
    micro_batch_size: int,
    release: str | None = None,
    initialize: Callable[[Mapping[str, Any]], None] | None = None,
) -> bool:
    """Initialize the buffers if `model.tp_comm_overlap` is set; return whether it is. Then collective over the world.

    Call this after the process groups are created and before the model is built: its layers look up their buffers
    when they are constructed.

    Args:
        model: model section.
        micro_batch_size: sequences in a microbatch.
        release: version of Transformer Engine; None: the installed one, or the newest known one if none is.
        initialize: replaces `te.initialize_user_buffers`, which imports Transformer Engine.

    Raises:
        BufferSettingsError: the tokens cannot be divided over the ranks, or the settings do not fit this version.
    """
    if not getattr(model, "tp_comm_overlap", False):  # families that do not support it have no such field
        return False
    # one set of buffers for each data type of the layers
    modes: list[Literal["FP8", "NONE"]] = ["FP8"] if model.fp8 else ["NONE"]
    if model.fp8 and model.first_last_layers_bf16:
        modes.append("NONE")
    arguments = initialize_ub_arguments(
        seq_length=model.seq_length,
        micro_batch_size=micro_batch_size,
        hidden_size=model.hidden_size,
        tp=model.tensor_model_parallel_size,
        cp=model.context_parallel_size,
        release=release or detect_versions(None, {}).transformer_engine_version or NEWEST_VERSION,
        settings=model.tp_comm_overlap_cfg,
        quantization_modes=modes,
    )
    if model.tp_comm_bootstrap_backend is not None:
        arguments["bootstrap_backend"] = model.tp_comm_bootstrap_backend
    # a module of its own, since it imports Transformer Engine
    start = initialize or import_module("mb_overlap.transformer_engine.te").initialize_user_buffers
    start(arguments)
    return True
