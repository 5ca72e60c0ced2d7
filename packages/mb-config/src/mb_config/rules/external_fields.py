"""Fields of other packages' sections that the rules of this package read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZE = int | None
_SWITCH = bool | None
_TEXT = str | None
_NAMES = str | list[str] | None

EXTERNAL_FIELDS: Mapping[str, Any] = {
    "model.bf16": _SWITCH,
    "model.calculate_per_token_loss": _SWITCH,
    "model.context_parallel_size": _SIZE,
    "model.cuda_graph_impl": _TEXT,
    "model.cuda_graph_modules": _NAMES,
    "model.cuda_graph_scope": _NAMES,
    "model.deterministic_mode": _SWITCH,
    "model.fine_grained_activation_offloading": _SWITCH,
    "model.fp16": _SWITCH,
    "model.fp8": _TEXT,
    "model.fp8_param": _SWITCH,
    "model.fp8_recipe": _TEXT,
    "model.hierarchical_context_parallel_sizes": list[int] | None,
    "model.microbatch_group_size_per_vp_stage": _SIZE,
    "model.no_sync_func": Any,
    "model.pipeline_model_parallel_size": _SIZE,
    "model.seq_length": _SIZE,
    "model.tensor_model_parallel_size": _SIZE,
    "model.virtual_pipeline_model_parallel_size": _SIZE,
}
"""Path to type of each field."""
