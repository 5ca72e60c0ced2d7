"""Settings of this project as arguments of Megatron-LM, for checkpoints that it reads: the inverse of `conversion`."""

from collections.abc import Mapping
from typing import Any

from mb_config.megatron_lm.flag_table import read_flags

_GATED = {"silu": "swiglu", "quick_gelu": "quick_geglu"}


def megatron_arguments(config: Any, *, padded_vocab_size: int, world_size: int) -> dict[str, Any] | None:
    """Return the resolved settings of a run by their names in `megatron.training.get_args()`.

    None for a model of several modules, which Megatron-LM describes otherwise. Contains the arguments whose value the
    settings determine: those of the model, the optimizer, the schedule, the batch, the parallel layout and the
    checkpoint. Arguments without a counterpart are absent, not guessed.

    Args:
        config: Container with the sections of a run.
        padded_vocab_size: Rows of the embedding.
        world_size: Number of processes.
    """
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= vars(config.model).keys():
        return None
    arguments = {
        dest: value
        for dest, flag in read_flags().items()
        if flag.path and (value := _value_at(config, flag.path)) is not None
    }
    arguments |= _architecture(config.model)
    arguments |= _run(config)
    layout = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    shards = 1
    for name in layout:
        shards *= arguments[name]
    return {
        **arguments,
        "padded_vocab_size": padded_vocab_size,
        "world_size": world_size,
        "data_parallel_size": world_size // shards,
    }


def _value_at(config: Any, path: str) -> Any:
    """Return the value of a field, or None for a section or a field that is absent."""
    value = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else vars(value).get(name)
        if value is None:
            return None
    return value


def _architecture(model: Any) -> dict[str, Any]:
    """Return the arguments that `conversion.architecture` and its neighbours read."""
    fields = vars(model)
    activation, gated = fields.get("activation_func"), bool(fields.get("gated_linear_unit"))
    groups = fields.get("num_query_groups")
    grouped = groups is not None and groups != model.num_attention_heads
    return {
        "seq_length": model.seq_length,
        "encoder_seq_length": model.seq_length,
        "max_position_embeddings": fields.get("max_position_embeddings") or model.seq_length,
        "ffn_hidden_size": fields.get("ffn_hidden_size") or 4 * model.hidden_size,
        "kv_channels": fields.get("kv_channels") or model.hidden_size // model.num_attention_heads,
        "group_query_attention": grouped,
        "num_query_groups": groups or model.num_attention_heads,
        "position_embedding_type": fields.get("position_embedding_type", "learned_absolute"),
        "use_rotary_position_embeddings": False,
        "add_qkv_bias": bool(fields.get("add_qkv_bias")),
        **{name: gated and activation == name_here for name_here, name in _GATED.items()},
        "squared_relu": activation == "squared_relu",
        "untie_embeddings_and_output_weights": not fields.get("share_embeddings_and_output_weights"),
        "num_experts": fields.get("num_moe_experts"),
        "moe_router_load_balancing_type": fields.get("moe_router_load_balancing_type", "aux_loss"),
        "moe_aux_loss_coeff": fields.get("moe_aux_loss_coeff", 0.0),
        "hybrid_layer_pattern": fields.get("hybrid_layer_pattern"),
        "virtual_pipeline_model_parallel_size": fields.get("virtual_pipeline_model_parallel_size"),
        "sequence_parallel": bool(fields.get("sequence_parallel")),
        "bf16": bool(fields.get("bf16")),
        "fp16": bool(fields.get("fp16")),
    }


def _run(config: Any) -> dict[str, Any]:
    checkpoint = config.checkpoint
    return {
        "use_distributed_optimizer": config.ddp.use_distributed_optimizer,
        "ckpt_format": checkpoint.ckpt_format,
        "no_save_optim": not checkpoint.save_optim,
        "no_save_rng": not checkpoint.save_rng,
        "ckpt_fully_parallel_save": checkpoint.fully_parallel_save,
        "dist_ckpt_optim_fully_reshardable": checkpoint.dist_ckpt_optim_fully_reshardable,
        "seed": config.rng.seed,
    }
