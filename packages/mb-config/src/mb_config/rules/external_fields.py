"""Fields of other packages' sections that the rules of this package read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mb_config.rules.sizes import SIZES

_SIZE = int | None
_SWITCH = bool | None
_TEXT = str | None
_NUMBER = float
_NAMES = str | list[str] | None

EXTERNAL_FIELDS: Mapping[str, Any] = {
    **{path: _SIZE for path in SIZES if path.startswith(("model.", "dataset.", "tokenizer."))},
    "checkpoint.also_save_hf_checkpoint": _SWITCH,
    "checkpoint.ckpt_format": _TEXT,
    "checkpoint.hf_source_path": _TEXT,
    "checkpoint.load": _TEXT,
    "checkpoint.non_persistent_ckpt_type": _TEXT,
    "checkpoint.pretrained_checkpoint": _TEXT,
    "checkpoint.save": _TEXT,
    "dataset.full_validation": _SWITCH,
    "dataset.packed_sequence_specs": Any,
    "dataset.seq_length": _SIZE,
    "ft.enable_ft_package": _SWITCH,
    "dataset.vocab_size": _SIZE,
    "logger.log_l2_norm_grad_to_tensorboard": _SWITCH,
    "logger.tensor_norms_steps": list[int] | None,
    "model.account_for_embedding_in_pipeline_split": _SWITCH,
    "model.account_for_loss_in_pipeline_split": _SWITCH,
    "model.attention_dropout": _NUMBER,
    "model.bf16": _SWITCH,
    "model.calculate_per_token_loss": _SWITCH,
    "model.context_parallel_size": _SIZE,
    "model.cp_comm_type": _NAMES,
    "model.cpu_offloading": _SWITCH,
    "model.cpu_offloading_num_layers": _SIZE,
    "model.cross_entropy_loss_fusion": _SWITCH,
    "model.cuda_graph_impl": _TEXT,
    "model.cuda_graph_modules": _NAMES,
    "model.cuda_graph_scope": _NAMES,
    "model.deterministic_mode": _SWITCH,
    "model.expert_model_parallel_size": _SIZE,
    "model.expert_tensor_parallel_size": _SIZE,
    "model.fine_grained_activation_offloading": _SWITCH,
    "model.fp16": _SWITCH,
    "model.fp4": _TEXT,
    "model.fp8": _TEXT,
    "model.fp8_param": _SWITCH,
    "model.fp8_recipe": _TEXT,
    "model.gradient_accumulation_fusion": _SWITCH,
    "model.hf_model_id": _TEXT,
    "model.hidden_dropout": _NUMBER,
    "model.hierarchical_context_parallel_sizes": list[int] | None,
    "model.inference_cuda_graph_scope": _TEXT,
    "model.init_method_std": _NUMBER,
    "model.layernorm_epsilon": _NUMBER,
    "model.microbatch_group_size_per_vp_stage": _SIZE,
    "model.moe_flex_dispatcher_backend": _TEXT,
    "model.moe_token_dispatcher_type": _TEXT,
    "model.no_sync_func": Any,
    "model.num_attention_heads": _SIZE,
    "model.num_layers": _SIZE,
    "model.num_layers_in_first_pipeline_stage": _SIZE,
    "model.num_layers_in_last_pipeline_stage": _SIZE,
    "model.num_moe_experts": _SIZE,
    "model.num_query_groups": _SIZE,
    "model.overlap_moe_expert_parallel_comm": _SWITCH,
    "model.pipeline_model_parallel_layout": Any,
    "model.pipeline_model_parallel_size": _SIZE,
    "model.recompute_granularity": _TEXT,
    "model.recompute_modules": list[str] | None,
    "model.restore_modelopt_state": _SWITCH,
    "model.rotary_percent": _NUMBER,
    "model.seq_length": _SIZE,
    "model.sequence_parallel": _SWITCH,
    "model.tensor_model_parallel_size": _SIZE,
    "model.transformer_impl": _TEXT,
    "model.virtual_pipeline_model_parallel_size": _SIZE,
    "model.vocab_size": _SIZE,
    "rerun_state_machine.check_for_nan_in_loss": _SWITCH,
    "rerun_state_machine.check_for_spiky_loss": _SWITCH,
    "rerun_state_machine.check_loss_immediately": _SWITCH,
    "rerun_state_machine.rerun_mode": _TEXT,
    "straggler.log_straggler": _SWITCH,
    "tokenizer.tokenizer_model": _TEXT,
    "tokenizer.tokenizer_type": _TEXT,
    "tokenizer.vocab_size": _SIZE,
}
"""Path to type of each field."""
