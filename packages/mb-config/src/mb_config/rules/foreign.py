"""What rules of this package read of sections that belong to other packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZE = int | None
_SWITCH = bool | None
_NAMES = str | list[str] | None

FOREIGN: Mapping[str, Any] = {
    "checkpoint.ckpt_format": str | None,
    "dataset.seq_length": _SIZE,
    "model.account_for_embedding_in_pipeline_split": _SWITCH,
    "model.account_for_loss_in_pipeline_split": _SWITCH,
    "model.bf16": _SWITCH,
    "model.context_parallel_size": _SIZE,
    "model.cp_comm_type": _NAMES,
    "model.cross_entropy_loss_fusion": _SWITCH,
    "model.cuda_graph_impl": str | None,
    "model.cuda_graph_modules": _NAMES,
    "model.cuda_graph_scope": _NAMES,
    "model.deterministic_mode": _SWITCH,
    "model.expert_model_parallel_size": _SIZE,
    "model.expert_tensor_parallel_size": _SIZE,
    "model.fine_grained_activation_offloading": _SWITCH,
    "model.fp16": _SWITCH,
    "model.hierarchical_context_parallel_sizes": list[int] | None,
    "model.inference_cuda_graph_scope": str | None,
    "model.num_attention_heads": _SIZE,
    "model.num_layers": _SIZE,
    "model.num_layers_in_first_pipeline_stage": _SIZE,
    "model.num_layers_in_last_pipeline_stage": _SIZE,
    "model.num_moe_experts": _SIZE,
    "model.num_query_groups": _SIZE,
    "model.pipeline_model_parallel_layout": Any,
    "model.pipeline_model_parallel_size": _SIZE,
    "model.seq_length": _SIZE,
    "model.sequence_parallel": _SWITCH,
    "model.tensor_model_parallel_size": _SIZE,
    "model.transformer_impl": str | None,
    "model.virtual_pipeline_model_parallel_size": _SIZE,
    "rerun_state_machine.check_for_nan_in_loss": _SWITCH,
}
"""Types of the fields of other packages that rules of this one read."""
