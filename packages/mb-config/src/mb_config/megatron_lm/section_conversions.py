"""Conversion of arguments that differ in meaning: each function reads some and yields the fields they set together."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mb_config.megatron_lm.flag_table import Arguments, MegatronFlagError, option_of

Fields = Iterator[tuple[str, Any]]
"""Dotted path and value of each field that is set."""


def is_converted(dest: str) -> bool:
    """Return whether a function of this module reads an argument."""
    return any(dest in dests for dests in CONVERSIONS.values())


def architecture(arguments: Arguments) -> Fields:
    """Activation, attention groups, embeddings and layers."""
    gated = {"swiglu": "silu", "quick_geglu": "quick_gelu"}
    chosen = [name for name in (*gated, "squared_relu") if arguments[name]]
    if len(chosen) > 1:
        raise MegatronFlagError(
            f"{' and '.join(option_of(name) for name in chosen)} exclude each other. Pass one."
        )
    for name in chosen:
        yield "model.activation_func", gated.get(name, name)
        yield "model.gated_linear_unit", name in gated
    fused = arguments["bias_swiglu_fusion" if arguments["swiglu"] else "bias_gelu_fusion"]
    yield (
        "model.bias_activation_fusion",
        fused and (arguments["swiglu"] or arguments["add_bias_linear"]),
    )
    yield "model.add_qkv_bias", arguments["add_qkv_bias"] or arguments["add_bias_linear"]
    yield (
        "model.num_query_groups",
        arguments["num_query_groups"] if arguments["group_query_attention"] else None,
    )
    yield "model.share_embeddings_and_output_weights", not arguments["untie_embeddings_and_output_weights"]
    yield "model.persist_layer_norm", not arguments["no_persist_layer_norm"]
    rotary = arguments["use_rotary_position_embeddings"]
    yield "model.position_embedding_type", "rope" if rotary else arguments["position_embedding_type"]
    if arguments["num_experts"] is not None:
        yield "model.num_moe_experts", arguments["num_experts"]
    if arguments["use_rope_scaling"]:
        yield "model.rope_scaling", True
    if arguments["rotary_seq_len_interpolation_factor"] is not None:
        yield "model.seq_len_interpolation_factor", arguments["rotary_seq_len_interpolation_factor"]
    if arguments["recompute_activations"]:
        yield "model.recompute_granularity", "selective"
    yield (
        "model.sequence_parallel",
        arguments["sequence_parallel"] and arguments["tensor_model_parallel_size"] > 1,
    )
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        value = arguments[name]
        yield f"model.{name}", value[0] if isinstance(value, list) and len(value) == 1 else value
    yield from layer_spec(arguments)


def layer_spec(arguments: Arguments) -> Fields:
    """Specification of the layers: those that Megatron-LM's own programs name."""
    spec = arguments["spec"]
    if spec == ["local"]:
        yield "model.transformer_impl", "local"
    elif spec is not None and not (is_hybrid(arguments) and spec[-1] in HYBRID_SPECS):
        raise MegatronFlagError(
            f"--spec {' '.join(spec)}: has no counterpart; `--spec local` has one, and {' and '.join(HYBRID_SPECS)} of "
            "a hybrid. Leave it out with --custom-flag=--spec if it names the layers of Megatron Core."
        )


HYBRID_SPECS = ("hybrid_stack_spec", "mamba_stack_spec")
"""Functions of Megatron Core with the layers that a hybrid has here."""


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
STATE_SPACE_FIELDS = (
    *("mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads"),
    "mamba_training_ssm_states_dtype",
)
"""Arguments that are fields of a hybrid itself."""


def hybrid_pattern(arguments: Arguments) -> str:
    """Return the layers of a hybrid; empty for other models."""
    return arguments["hybrid_layer_pattern"] or arguments["hybrid_override_pattern"] or ""


def is_hybrid(arguments: Arguments) -> bool:
    """Return whether the arguments describe a hybrid of attention and state-space layers."""
    return bool(hybrid_pattern(arguments))


def is_t5(arguments: Arguments) -> bool:
    """Return whether the arguments describe a T5, which has an encoder and a decoder."""
    return any(arguments[name] is not None for name in ("decoder_seq_length", "decoder_num_layers"))


def width(arguments: Arguments) -> Fields:
    """Width of the MLP, which Megatron-LM reduces to two thirds for the three matrices of SwiGLU."""
    hidden = arguments["hidden_size"]
    if arguments["swiglu"] and arguments["ffn_hidden_size"] is None and hidden is not None:
        yield "model.ffn_hidden_size", int(4 * hidden * 2 / 3 / 64) * 64


def model_class(arguments: Arguments) -> Fields:
    """Class of the model."""
    if is_t5(arguments):
        encoder = arguments["encoder_num_layers"] or arguments["num_layers"]
        yield "model._target_", "T5ModelConfig"
        yield "model.encoder_num_layers", encoder
        yield "model.num_layers", arguments["decoder_num_layers"] or encoder
        for section in ("model", "dataset"):
            yield f"{section}.decoder_seq_length", arguments["decoder_seq_length"] or 128
    elif is_hybrid(arguments):
        pattern = hybrid_pattern(arguments)
        yield "model._target_", "MambaModelConfig"
        yield "model.hybrid_layer_pattern", pattern
        # parts behind a slash are those of multi-token prediction; --num-layers is not read
        yield "model.num_layers", len(pattern.partition("/")[0].replace("|", ""))
    else:
        yield "model._target_", "GPTModelConfig"
    section = "model" if is_hybrid(arguments) else "model.transformer"
    for name in STATE_SPACE_FIELDS:
        if name in arguments.given:
            yield f"{section}.{name}", DTYPES.get(arguments[name], arguments[name])


def sequence_length(arguments: Arguments) -> Fields:
    """Length of a sequence, in the sections of model and data."""
    length = arguments["seq_length"] or arguments["encoder_seq_length"]
    if length is None:
        raise MegatronFlagError("--seq-length: is required. Megatron-LM has no default for it.")
    yield "model.seq_length", length
    yield "dataset.seq_length", length


def pipeline(arguments: Arguments) -> Fields:
    """Stages and chunks of the pipeline."""
    stages = arguments["pipeline_model_parallel_size"]
    for end in ("first", "last"):
        if arguments[f"decoder_{end}_pipeline_num_layers"] is not None:
            yield f"model.num_layers_in_{end}_pipeline_stage", arguments[f"decoder_{end}_pipeline_num_layers"]
    chunk, chunks = (
        arguments["num_layers_per_virtual_pipeline_stage"],
        arguments["num_virtual_stages_per_pipeline_rank"],
    )
    if chunk is not None:
        layers = arguments["num_layers"]
        if layers is None or layers % (stages * chunk):
            raise MegatronFlagError(
                f"--num-layers-per-virtual-pipeline-stage: {chunk} layers in each chunk of {stages} stages do not "
                f"divide --num-layers {layers}."
            )
        chunks = layers // stages // chunk
    layout = arguments["pipeline_model_parallel_layout"]
    if layout is not None:
        yield "model.pipeline_model_parallel_layout", layout
    parts = stages_of_layout(layout or hybrid_pattern(arguments).partition("/")[0])
    if parts > stages:
        chunks = parts // stages
    if chunks is not None:
        yield "model.virtual_pipeline_model_parallel_size", chunks
    yield "model.overlap_p2p_comm", arguments["overlap_p2p_comm"] and (chunks or 1) > 1
    yield "model.batch_p2p_comm", not (arguments["overlap_p2p_comm"] and (chunks or 1) > 1)
    yield "model.deallocate_pipeline_outputs", True


def stages_of_layout(layout: str) -> int:
    """Return the number of stages, virtual ones included, of a layout such as `Et|(tt|)*3L`."""
    text = layout.replace(",", "")
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    return text.count("|") + 1


def padding(arguments: Arguments) -> Fields:
    """Rows of the embedding, if they are given."""
    if arguments["padded_vocab_size"] is not None:
        yield "model.vocab_size", arguments["padded_vocab_size"]


def precision(arguments: Arguments) -> Fields:
    """Types of parameters and gradients."""
    half = "bfloat16" if arguments["bf16"] else "float16" if arguments["fp16"] else None
    if arguments["bf16"] and arguments["fp16"]:
        raise MegatronFlagError("--bf16 and --fp16 exclude each other. Pass one.")
    reduce_in_fp32 = arguments["accumulate_allreduce_grads_in_fp32"]
    if half is not None:
        short = "bf16" if arguments["bf16"] else "fp16"
        yield f"model.{short}", True
        yield f"optimizer.{short}", True
        yield "model.params_dtype", half
        yield "optimizer.params_dtype", half
        yield "model.autocast_dtype", half
        if arguments["bf16"] and arguments["main_grads_dtype"] in (None, "fp32"):
            reduce_in_fp32 = not arguments["grad_reduce_in_bf16"]
    if arguments["pipeline_model_parallel_size"] > 1:
        yield "model.pipeline_dtype", half or "float32"
    yield "ddp.grad_reduce_in_fp32", reduce_in_fp32
    yield "model.fp8_param", arguments["fp8_param_gather"]
    yield "ddp.fp8_param_gather", arguments["fp8_param_gather"]


def attention(arguments: Arguments) -> Fields:
    """Attention kernels, and the rank of latent queries."""
    if arguments["multi_latent_attention"]:
        yield "model.q_lora_rank", arguments["q_lora_rank"]
    if arguments["attention_backend"] is not None:
        yield "model.attention_backend", str(arguments["attention_backend"]).removeprefix("AttnBackend.")


OPTIMIZER_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def optimizer_dtypes(arguments: Arguments) -> Fields:
    """Types of the optimizer state."""
    for name in OPTIMIZER_DTYPES:
        yield f"optimizer.{name}", DTYPES.get(arguments[name], arguments[name])


def weight_decay(arguments: Arguments) -> Fields:
    """Weight decay of the norms of queries and keys, also by the earlier argument, which has this value only."""
    earlier = arguments["no_weight_decay_cond_type"] is not None
    yield "optimizer.apply_wd_to_qk_layernorm", arguments["apply_wd_to_qk_layernorm"] or earlier


FSDP_DTYPES = tuple(f"megatron_fsdp_{name}_dtype" for name in ("main_params", "main_grads", "grad_comm"))


def fsdp_dtypes(arguments: Arguments) -> Fields:
    """Types of the buffers of Megatron-FSDP; `auto` is the type that follows from the others."""
    for name in FSDP_DTYPES:
        if arguments["use_megatron_fsdp"]:
            yield (
                f"ddp.{name}",
                None if arguments[name] == "auto" else DTYPES.get(arguments[name], arguments[name]),
            )


def cuda_graphs(arguments: Arguments) -> Fields:
    """CUDA graphs: the implementation and the captured modules, also by their earlier names."""
    old, new = arguments["cuda_graph_scope_deprecated"], arguments["cuda_graph_modules"]
    if old and new:
        raise MegatronFlagError("--cuda-graph-scope and --cuda-graph-modules are one setting. Pass one.")
    implementation = arguments["cuda_graph_impl"]
    for name, meaning in EARLIER_GRAPHS.items():
        if arguments[name]:
            if implementation not in ("none", meaning):
                raise MegatronFlagError(
                    f"{option_of(name)}: is an earlier name of --cuda-graph-impl {meaning}, and it is "
                    f"{implementation}. Pass one."
                )
            implementation = meaning
    modules = [*(old or new or ())]
    if "full_iteration" in modules:
        implementation = "full_iteration"
    elif "full_iteration_inference" in modules and implementation != "none":
        yield "model.transformer.inference_cuda_graph_scope", "block"
    captured = [name for name in modules if not name.startswith("full")]
    yield "model.cuda_graph_impl", implementation
    if captured:
        yield "model.cuda_graph_modules", captured
    if implementation != "none" and "transformer_engine" in (implementation, arguments["transformer_impl"]):
        yield "rng.te_rng_tracker", True


EARLIER_GRAPHS = {"enable_cuda_graph": "local", "external_cuda_graph": "transformer_engine"}
"""Argument -> value of `cuda_graph_impl` of which it is an earlier name."""


def context_parallel(arguments: Arguments) -> Fields:
    """Communication of context parallelism, of all layers or of each."""
    kinds = arguments["cp_comm_type"]
    if arguments["context_parallel_size"] > 1:
        yield "model.cp_comm_type", kinds[0] if len(kinds) == 1 else kinds


def data_parallel(arguments: Arguments) -> Fields:
    """Distributed data parallelism."""
    # a dynamic scale is lowered after such gradients
    scaled = arguments["fp16"] and not arguments["loss_scale"]
    checked = arguments["check_for_nan_in_loss_and_grad"] and not scaled
    yield "ddp.check_for_nan_in_grad", checked
    yield "rerun_state_machine.check_for_nan_in_loss", checked
    yield "ddp.use_distributed_optimizer", arguments["use_distributed_optimizer"]
    yield "optimizer.use_distributed_optimizer", arguments["use_distributed_optimizer"]
    yield "optimizer.overlap_param_gather", arguments["overlap_param_gather"]
    yield "ddp.overlap_param_gather", arguments["overlap_param_gather"]
    for name in ("num_buckets", "bucket_size", "pad_buckets_for_high_nccl_busbw", "average_in_collective"):
        if arguments[f"ddp_{name}"]:
            yield f"ddp.{name}", arguments[f"ddp_{name}"]


def checkpoints(arguments: Arguments) -> Fields:
    """Contents of checkpoints."""
    for kind in ("save_optim", "save_rng", "load_optim", "load_rng"):
        yield f"checkpoint.{kind}", not arguments[f"no_{kind}"]
    yield "checkpoint.fully_parallel_save", arguments["ckpt_fully_parallel_save"]
    if arguments["ckpt_fully_parallel_load"]:  # how it is read, not what
        yield "checkpoint.fully_parallel_load", True
    if arguments["dist_ckpt_format_deprecated"] is not None:
        yield "checkpoint.ckpt_format", arguments["dist_ckpt_format_deprecated"]


def corpus(arguments: Arguments) -> Fields:
    """Files of the data, their weights and their split."""
    together, per_split = _data_paths(arguments)
    yield "dataset.path_to_cache", arguments["data_cache_path"]
    if not is_t5(arguments):  # whose masks depend on the sample
        yield "dataset.create_attention_mask", arguments["create_attention_mask_in_dataloader"]
        yield (
            "dataset.skip_getting_attention_mask_from_dataset",
            not arguments["create_attention_mask_in_dataloader"],
        )
    yield "dataset.random_seed", arguments["seed"]
    if is_t5(arguments):
        yield "dataset._target_", "T5DatasetConfig"
        yield "dataset.noise_density", arguments["mask_prob"]
    elif arguments["mock_data"]:
        yield "dataset._target_", "MockGPTDatasetConfig"
    elif arguments["fim_data"]:
        yield "dataset._target_", "GPTFIMDatasetConfig"
        yield from _fill_in_the_middle(arguments)
    else:
        yield "dataset._target_", "GPTDatasetConfig"
    if together is not None:
        yield "dataset.blend", _blend(together)
        yield "dataset.split", arguments["split"] or "969, 30, 1"
    elif any(per_split):
        yield "dataset.blend_per_split", [None if path is None else _blend(path) for path in per_split]
    elif not arguments["mock_data"]:
        raise MegatronFlagError("--data-path: no data. Pass --data-path, --train-data-path or --mock-data.")


def tokenizer(arguments: Arguments) -> Fields:
    """Type of the tokenizer, for which each program of Megatron-LM has a default."""
    if (
        arguments["tokenizer_type"] is not None
        or (arguments["vocab_file"] or arguments["merge_file"]) is None
    ):
        return
    if is_t5(arguments):
        yield "tokenizer.tokenizer_type", "BertWordPieceLowerCase"
    elif arguments["vocab_file"] is None or arguments["merge_file"] is None:
        raise MegatronFlagError(
            "--tokenizer-type: is missing. GPT2BPETokenizer, the default of pretrain_gpt.py, needs --vocab-file and "
            "--merge-file; BERT, whose vocabulary is one file, has no counterpart."
        )
    else:
        yield "tokenizer.tokenizer_type", "GPT2BPETokenizer"


FIM = ("rate", "spm_rate", "split_sample", "fragment_rate", "no_prefix")


FIM_TOKENS = ("prefix", "middle", "suffix", "pad", "eod")


def _fill_in_the_middle(arguments: Arguments) -> Fields:
    for name in FIM:
        if arguments[f"fim_{name}"] is not None:
            yield f"dataset.fim_{name}", arguments[f"fim_{name}"]
    tokens = {name: arguments[f"fim_{name}_token"] for name in FIM_TOKENS}
    if any(tokens.values()):
        yield "dataset.fim_extra_tokens", {name: token for name, token in tokens.items() if token is not None}


SPLITS = ("train", "valid", "test")


def _data_paths(arguments: Arguments) -> tuple[Sequence[str] | None, Sequence[Sequence[str] | None]]:
    """Return paths and weights of the data, and those of each split, from the arguments or the files that they name.

    Raises:
        MegatronFlagError: Such a file cannot be read.
    """
    one, several = arguments["data_args_path"], arguments["per_split_data_args_path"]
    flag, path = ("--data-args-path", one) if one else ("--per-split-data-args-path", several)
    if path and (arguments["data_path"] or (one and several)):
        raise MegatronFlagError(f"{flag}: is not allowed with other data. Pass one of them.")
    try:
        if one:
            return Path(one).read_text(encoding="utf-8").split(), ()
        if several:
            found = json.loads(Path(several).read_text(encoding="utf-8"))
            words = [found[split] for split in SPLITS]
            return None, [item.split() if isinstance(item, str) else item for item in words]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MegatronFlagError(
            f"{flag}: {path} cannot be read ({type(error).__name__}: {error}). Convert where the file is, or pass its "
            "contents with --data-path or --train-data-path and the like."
        ) from error
    return arguments["data_path"], [arguments[f"{split}_data_path"] for split in SPLITS]


def _blend(words: Sequence[str]) -> list[Any]:
    """Return paths and weights: `0.3 a 0.7 b` has weights, `a b` has none."""
    if len(words) == 1 or len(words) % 2:
        return [[*words], None]
    try:
        return [[*words[1::2]], [float(word) for word in words[::2]]]
    except ValueError:
        return [[*words], None]


def fault_tolerance(arguments: Arguments) -> Fields:
    """Sections for a fault-tolerance launcher, straggler timer and restarts within the process."""
    if arguments["enable_ft_package"]:
        yield "ft.enable_ft_package", True
        yield "ft.calc_ft_timeouts", arguments["calc_ft_timeouts"]
    if arguments["log_straggler"]:
        yield "straggler.log_straggler", True
        yield "straggler.straggler_minmax_count", arguments["straggler_minmax_count"]
        yield "straggler.disable_straggler_on_startup", arguments["disable_straggler_on_startup"]
    if arguments["inprocess_restart"]:
        yield "inprocess_restart.enabled", True
        for name in RESTART_TIMES_AND_LIMITS:
            yield f"inprocess_restart.{name}", arguments[f"inprocess_{name}"]
        # Megatron-LM's default is WORLD_SIZE
        active = arguments["inprocess_active_world_size"]
        yield "inprocess_restart.active_world_size", None if active == 1 else active


RESTART_TIMES_AND_LIMITS = (
    *("max_iterations", "monitor_thread_interval", "monitor_process_interval", "progress_watchdog_interval"),
    *("heartbeat_interval", "soft_timeout", "hard_timeout", "heartbeat_timeout", "barrier_timeout"),
    *("completion_timeout", "last_call_wait", "termination_grace_time", "granularity", "empty_cuda_cache"),
)
"""Fields of `inprocess_restart` that are arguments under the same name, with a prefix."""


def profiler(arguments: Arguments) -> Fields:
    """The profiler that `--profile` starts: Nsight Systems, unless PyTorch's is chosen."""
    if arguments["profile"]:
        yield "profiling.use_nsys_profiler", not arguments["use_pytorch_profiler"]
        yield "profiling.use_pytorch_profiler", arguments["use_pytorch_profiler"]


_LATENT = (
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("cache_mla_latents", "mla_down_proj_fusion"),
)

NO_EFFECT_WITHOUT: Mapping[str, str] = {
    "num_query_groups": "group_query_attention",
    "calc_ft_timeouts": "enable_ft_package",
    "straggler_minmax_count": "log_straggler",
    "disable_straggler_on_startup": "log_straggler",
    "use_pytorch_profiler": "profile",
    **dict.fromkeys(_LATENT, "multi_latent_attention"),
    **dict.fromkeys(FSDP_DTYPES, "use_megatron_fsdp"),
    "inprocess_active_world_size": "inprocess_restart",
    **{f"inprocess_{name}": "inprocess_restart" for name in RESTART_TIMES_AND_LIMITS},
    **{f"fim_{name}": "fim_data" for name in FIM},
    **{f"fim_{name}_token": "fim_data" for name in FIM_TOKENS},
}
"""Argument -> the one without which Megatron-LM does not read it."""


CONVERSIONS: Mapping[Callable[[Arguments], Fields], tuple[str, ...]] = {
    model_class: (
        *("hybrid_layer_pattern", "hybrid_override_pattern", *STATE_SPACE_FIELDS),
        *("encoder_num_layers", "decoder_num_layers", "decoder_seq_length"),
    ),
    width: ("swiglu",),
    architecture: (
        *("swiglu", "quick_geglu", "squared_relu", "bias_swiglu_fusion", "bias_gelu_fusion"),
        *("add_qkv_bias", "group_query_attention", "num_query_groups", "untie_embeddings_and_output_weights"),
        *(
            "no_persist_layer_norm",
            "use_rotary_position_embeddings",
            "position_embedding_type",
            "num_experts",
        ),
        *("use_rope_scaling", "rotary_seq_len_interpolation_factor", "recompute_activations", "spec"),
        *("sequence_parallel", "moe_router_load_balancing_type", "moe_aux_loss_coeff"),
    ),
    sequence_length: ("seq_length", "encoder_seq_length"),
    pipeline: (
        *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "overlap_p2p_comm"),
        *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"),
        "pipeline_model_parallel_layout",
    ),
    precision: (
        *("bf16", "fp16", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16", "fp8_param_gather"),
    ),
    optimizer_dtypes: OPTIMIZER_DTYPES,
    weight_decay: ("apply_wd_to_qk_layernorm", "no_weight_decay_cond_type"),
    fsdp_dtypes: FSDP_DTYPES,
    padding: ("padded_vocab_size",),
    context_parallel: ("cp_comm_type",),
    cuda_graphs: (
        *("cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope_deprecated"),
        *EARLIER_GRAPHS,
    ),
    attention: ("attention_backend", "q_lora_rank"),
    data_parallel: (
        *("check_for_nan_in_loss_and_grad", "use_distributed_optimizer", "overlap_param_gather"),
        *(
            "ddp_num_buckets",
            "ddp_bucket_size",
            "ddp_pad_buckets_for_high_nccl_busbw",
            "ddp_average_in_collective",
        ),
    ),
    checkpoints: (
        *("no_save_optim", "no_save_rng", "no_load_optim", "no_load_rng"),
        *("ckpt_fully_parallel_save", "ckpt_fully_parallel_load", "dist_ckpt_format_deprecated"),
    ),
    corpus: (
        *("data_path", "train_data_path", "valid_data_path", "test_data_path", "split", "data_cache_path"),
        *("data_args_path", "per_split_data_args_path"),
        *("mock_data", "create_attention_mask_in_dataloader", "fim_data"),
        *(f"fim_{name}" for name in FIM),
        *(f"fim_{name}_token" for name in FIM_TOKENS),
    ),
    fault_tolerance: (
        *("enable_ft_package", "calc_ft_timeouts"),
        *("log_straggler", "straggler_minmax_count", "disable_straggler_on_startup"),
        *("inprocess_restart", "inprocess_active_world_size"),
        *(f"inprocess_{name}" for name in RESTART_TIMES_AND_LIMITS),
    ),
    tokenizer: (),
    profiler: ("profile", "use_pytorch_profiler"),
}
"""Conversion -> arguments that only it reads."""
