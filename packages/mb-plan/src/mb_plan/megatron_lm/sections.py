"""Arguments of Megatron-LM as the fields of a run's sections, with Megatron-LM's defaults.

Source of the defaults that follow from other arguments: `validate_args` and `core_transformer_config_from_args` of
Megatron Core 0.19.
"""

from __future__ import annotations

from typing import Any

from mb_plan.errors import ModelFileError
from mb_plan.megatron_lm.command_line import CommandLine
from mb_plan.memory.model_chunks import read_layout
from mb_schema.megatron_flags import evaluate

Fields = dict[str, Any]
SAME = (
    *("ffn_hidden_size", "kv_channels", "normalization", "add_bias_linear", "qk_layernorm", "softmax_type"),
    *("attention_output_gate", "multi_latent_attention", "hidden_dropout", "attention_dropout"),
    *("hidden_size", "num_attention_heads", "moe_ffn_hidden_size", "moe_router_topk", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_expert_capacity_factor"),
    *("moe_pad_expert_input_to_capacity", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    *("overlap_moe_expert_parallel_comm", "mtp_num_layers", "mtp_use_repeated_layer"),
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads", "linear_conv_kernel_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
    *("attention_backend", "transformer_impl", "use_te_activation_func", "use_transformer_engine_op_fuser"),
    *("gradient_accumulation_fusion", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("recompute_modules", "distribute_saved_activations", "fp8", "fp8_recipe", "fp4", "bf16", "fp16"),
    *("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "microbatch_group_size_per_vp_stage"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("max_position_embeddings", "make_vocab_size_divisible_by"),
)
"""Arguments that are fields of the model with the same meaning."""
RENAMED = {
    "num_experts": "num_moe_experts",
    "fp8_param_gather": "fp8_param",
    "fp4_param_gather": "fp4_param",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "padded_vocab_size": "vocab_size",
}
"""Argument to the field of the model with the same meaning."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8", "auto": None}
T5_DECODER_LENGTH = 128
"""Tokens of the decoder in pretrain_t5.py, if they are not given."""


def sections_of(line: CommandLine) -> dict[str, Fields]:
    """Return the sections "model", "train", "dataset", "optimizer", "ddp", "checkpoint" and "tokenizer" of a run.

    Raises:
        ModelFileError: Arguments are missing or contradict each other, where Megatron-LM raises as well.
    """
    if line["micro_batch_size"] is None:
        raise ModelFileError(
            "--micro-batch-size: is missing, and Megatron-LM has no default for it. Pass it."
        )
    length = line["seq_length"] or line["encoder_seq_length"]
    if length is None:
        raise ModelFileError("--seq-length: is missing, and Megatron-LM has no default for it. Pass it.")
    return {
        "model": {**_model(line), "seq_length": length},
        "train": _train(line),
        "dataset": {"seq_length": length},
        "optimizer": _optimizer(line),
        "ddp": _ddp(line),
        "checkpoint": {
            "save_optim": not line["no_save_optim"],
            "dist_ckpt_optim_fully_reshardable": line["dist_ckpt_optim_fully_reshardable"],
        },
        "tokenizer": {name: line[name] for name in ("vocab_size", "pad_vocab_size")},
    }


def _model(line: CommandLine) -> Fields:
    """Return the model section, with the values that Megatron-LM derives from several arguments.

    Raises:
        ModelFileError: Arguments exclude each other.
    """
    model = {name: line[name] for name in SAME}
    model |= {field: line[name] for name, field in RENAMED.items()}
    pattern = _pattern(line)
    model |= _layers(line, pattern)
    model |= _feed_forward(line)
    model |= _kernels(line)
    model |= {
        "add_qkv_bias": line["add_qkv_bias"] or line["add_bias_linear"],
        "num_query_groups": line["num_query_groups"] if line["group_query_attention"] else None,
        "share_embeddings_and_output_weights": not line["untie_embeddings_and_output_weights"],
        "position_embedding_type": _positions(line),
        "window_size": _value(line, "window_size"),
        "window_attn_skip_freq": _value(line, "window_attn_skip_freq"),
        "moe_layer_freq": _value(line, "moe_layer_freq"),
        "sequence_parallel": line["sequence_parallel"] and line["tensor_model_parallel_size"] > 1,
        "virtual_pipeline_model_parallel_size": _virtual_stages(line, pattern),
    }
    if line["pipeline_model_parallel_layout"] is not None:
        model["pipeline_model_parallel_layout"] = line["pipeline_model_parallel_layout"]
    if line["bf16"] and line["fp16"]:
        raise ModelFileError("--bf16 and --fp16 exclude each other. Pass one.")
    if line["moe_enable_deepep"]:
        model["moe_flex_dispatcher_backend"] = "deepep"
    if line["recompute_activations"] or line["moe_layer_recompute"]:
        model["recompute_granularity"] = "selective"
    if line["moe_layer_recompute"]:
        model["recompute_modules"] = [*(line["recompute_modules"] or ["core_attn"]), "moe"]
    return model


def _pattern(line: CommandLine) -> str | None:
    """Return the layers of a hybrid model, with those of multi-token prediction behind slashes."""
    pattern: str | None = line["hybrid_layer_pattern"] or line["hybrid_override_pattern"]
    ahead, depths = line["mtp_hybrid_override_pattern"], line["mtp_num_layers"]
    if pattern and ahead and depths and "/" not in pattern:
        return "/".join([pattern, *[ahead] * depths])
    return pattern


def _layers(line: CommandLine, pattern: str | None) -> Fields:
    """Return the layers of a GPT, a hybrid model or a T5."""
    if pattern:
        return {
            "hybrid_layer_pattern": pattern,
            "num_layers": len(pattern.partition("/")[0].replace("|", "")),
        }
    encoder = line["num_layers"] or line["encoder_num_layers"]
    if (
        line.program != "pretrain_t5.py"
        and line["decoder_seq_length"] is None
        and line["decoder_num_layers"] is None
    ):
        return {"num_layers": encoder}
    return {
        "encoder_num_layers": encoder,
        "num_layers": line["decoder_num_layers"] or encoder,
        "decoder_seq_length": line["decoder_seq_length"] or T5_DECODER_LENGTH,
    }


def _feed_forward(line: CommandLine) -> Fields:
    """Return the activation. SwiGLU has three matrices, whose width Megatron-LM reduces to two thirds."""
    chosen = [name for name in ("swiglu", "quick_geglu", "squared_relu") if line[name]]
    if len(chosen) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise ModelFileError(f"{flags} exclude each other. Pass one.")
    fused = (
        line["bias_swiglu_fusion"] if line["swiglu"] else line["bias_gelu_fusion"] and line["add_bias_linear"]
    )
    fields = {"gated_linear_unit": line["swiglu"] or line["quick_geglu"], "bias_activation_fusion": fused}
    if line["swiglu"] and line["ffn_hidden_size"] is None and line["hidden_size"] is not None:
        fields["ffn_hidden_size"] = int(4 * line["hidden_size"] * 2 / 3 / 64) * 64
    return fields


def _kernels(line: CommandLine) -> Fields:
    """Return the implementation of layers, and the CUDA graphs, also by their earlier names."""
    earlier = {"enable_cuda_graph": "local", "external_cuda_graph": "transformer_engine"}
    impls = {impl for name, impl in earlier.items() if line[name]} | ({line["cuda_graph_impl"]} - {"none"})
    old, new = line["cuda_graph_scope_deprecated"], line["cuda_graph_modules"]
    if len(impls) > 1 or (old and new):
        raise ModelFileError("--cuda-graph-impl and its earlier names are one setting. Pass one.")
    modules = [*(old or new or ())]
    impl = "full_iteration" if "full_iteration" in modules else next(iter(impls), "none")
    fields = {
        "cuda_graph_impl": impl,
        "cuda_graph_modules": [name for name in modules if not name.startswith("full")],
    }
    spec = line["spec"]
    if spec == ["local"]:
        fields["transformer_impl"] = "local"
    elif spec and spec[-1] not in ("hybrid_stack_spec", "mamba_stack_spec"):
        raise ModelFileError(
            f"--spec: {' '.join(spec)} may be other layers than those of Megatron Core, which are not planned. "
            "Take it out to plan those."
        )
    return fields


def _positions(line: CommandLine) -> str:
    kind: str = "rope" if line["use_rotary_position_embeddings"] else line["position_embedding_type"]
    if kind == "relative":
        raise ModelFileError(
            "--position-embedding-type: relative is not planned. Its parameters are not counted."
        )
    if not line["add_position_embedding"] and kind != "rope":
        raise ModelFileError(
            "--no-position-embedding: Megatron-LM rejects it. Use --position-embedding-type none."
        )
    return kind


def _virtual_stages(line: CommandLine, pattern: str | None) -> int | None:
    """Return the virtual stages per rank; None: no interleaving.

    Raises:
        ModelFileError: Arguments exclude each other, or do not divide the layers.
    """
    stages, layout = line["pipeline_model_parallel_size"], line["pipeline_model_parallel_layout"]
    number: int | None = line["num_virtual_stages_per_pipeline_rank"]
    chunk = line["num_layers_per_virtual_pipeline_stage"]
    if sum(value is not None for value in (number, chunk, layout)) > 1:
        raise ModelFileError(
            "--num-layers-per-virtual-pipeline-stage, --num-virtual-stages-per-pipeline-rank and "
            "--pipeline-model-parallel-layout exclude each other. Pass one."
        )
    if layout is not None:
        number = len(read_layout(layout)) // stages
    if pattern and "|" in pattern:
        number = (pattern.partition("/")[0].count("|") + 1) // stages
    if chunk is not None:
        ends = line["account_for_embedding_in_pipeline_split"] + line["account_for_loss_in_pipeline_split"]
        layers = (line["num_layers"] or line["decoder_num_layers"] or 0) + ends
        if layers % (stages * chunk):
            raise ModelFileError(
                f"--num-layers-per-virtual-pipeline-stage: {chunk} layers in each chunk of {stages} stages do not "
                f"divide {layers} layers. Change one of them."
            )
        number = layers // stages // chunk
    return None if number == 1 else number


def _train(line: CommandLine) -> Fields:
    if line["global_batch_size"] and line["step_batch_size_schedule"]:
        raise ModelFileError(
            "--global-batch-size and --step-batch-size-schedule exclude each other. Pass one."
        )
    if line["train_iters"] and line["train_samples"]:
        raise ModelFileError("--train-iters and --train-samples exclude each other. Pass one.")
    names = ("micro_batch_size", "global_batch_size", "rampup_batch_size", "step_batch_size_schedule")
    train = {name: line[name] for name in (*names, "train_iters", "train_samples")}
    if line["exit_interval"] and line["train_iters"]:
        # the run ends at the first multiple
        train["train_iters"] = min(line["train_iters"], line["exit_interval"])
    return train


def _optimizer(line: CommandLine) -> Fields:
    names = ("optimizer", "sgd_momentum", "use_precision_aware_optimizer", "fp8_recipe", "bf16", "fp16")
    dtypes = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    return {
        **{name: line[name] for name in (*names, "optimizer_cpu_offload", "optimizer_offload_fraction")},
        **{name: DTYPES[line[name]] for name in dtypes},
        "use_distributed_optimizer": line["use_distributed_optimizer"] or line["use_megatron_fsdp"],
    }


def _ddp(line: CommandLine) -> Fields:
    in_float = line["accumulate_allreduce_grads_in_fp32"]
    if line["bf16"]:
        in_float = not line["grad_reduce_in_bf16"] and (in_float or line["main_grads_dtype"] == "fp32")
    names = ("use_megatron_fsdp", "num_distributed_optimizer_instances")
    sharded = ("data_parallel_sharding_strategy", "outer_dp_sharding_strategy")
    dtypes = ("megatron_fsdp_main_params_dtype", "megatron_fsdp_main_grads_dtype")
    return {
        **{name: line[name] for name in (*names, *sharded)},
        **{name: DTYPES[line[name]] for name in dtypes},
        "grad_reduce_in_fp32": in_float,
        "use_distributed_optimizer": line["use_distributed_optimizer"] or line["use_megatron_fsdp"],
    }


def _value(line: CommandLine, name: str) -> Any:
    """Return the value of an argument such as "2", "128,0" or "([0]*3+[1])*2"."""
    text = line[name]
    if not isinstance(text, str):
        return text
    try:
        return evaluate(text, number=int)
    except ValueError as error:
        raise ModelFileError(
            f"--{name.replace('_', '-')}: {text!r} is neither a number nor a list such as ([0]*3+[1])*2. Correct it."
        ) from error
