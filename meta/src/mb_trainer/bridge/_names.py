"""Names of Megatron-Bridge and where they are here: module path below `megatron.bridge` -> {name: module}.

Data of the package `mb_trainer.bridge`. A name that differs here is given as "module:name".
"""

from collections.abc import Callable, Mapping
from importlib import import_module

CONFIG, LOOP, METRICS, MODELS = "mb_trainer.config", "mb_loop", "mb_metrics", "mb_models"
SEED_CALLS = "mb_loop.bridge_api"
"""Megatron-Bridge's loop, step and evaluation, with its arguments."""


def _all(module: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), module)


CALLBACKS = _all(LOOP, "Callback CallbackContext CallbackManager normalize_callbacks")
PRECISION = {
    "MixedPrecisionConfig": CONFIG,
    **_all(
        "mb_config.resolve.precision_recipes",
        "bf16_mixed bf16_with_fp8_current_scaling_mixed bf16_with_fp8_delayed_scaling_mixed "
        "bf16_with_fp8_subchannel_scaling_mixed bf16_with_mxfp8_mixed bf16_with_nvfp4_mixed fp16_mixed "
        "fp16_with_fp8_current_scaling_mixed fp16_with_fp8_delayed_scaling_mixed "
        "fp16_with_fp8_subchannel_scaling_mixed fp16_with_mxfp8_mixed get_mixed_precision_config "
        "nanov2_bf16_with_fp8_current_scaling_mixed nemotron_3_super_bf16_with_nvfp4_mixed "
        "nemotron_h_bf16_with_fp8_current_scaling_mixed register",
    ),
}

NAMES: Mapping[str, Mapping[str, str]] = {
    "training.config": {
        **_all(
            CONFIG,
            "CheckpointConfig ConfigContainer DataloaderConfig DatasetProvider DistributedDataParallelConfig "
            "DistributedInitConfig FaultToleranceConfig FinetuningDatasetConfig GPTDatasetConfig GPTFIMDatasetConfig "
            "InProcessRestartConfig LoggerConfig MockGPTDatasetConfig NVRxStragglerDetectionConfig OptimizerConfig "
            "OptimizerConfigOverrideProvider ProfilingConfig RNGConfig RerunStateMachineConfig SchedulerConfig "
            "StragglerDetectionConfig TensorInspectConfig TokenizerConfig TrainingConfig ValidationConfig",
        ),
        "DatasetBuildContext": "mb_data",
        **_all(
            "mb_config",
            "OptimizerConfigOverrideProviderContext mimo_runtime_config_update runtime_config_update",
        ),
    },
    "training.train": {
        **_all(
            LOOP,
            "compute_throughputs_and_append_to_progress_log disable_forward_pre_hook enable_forward_pre_hook "
            "get_start_time_from_progress_log should_disable_forward_pre_hook",
        ),
        **_all(
            SEED_CALLS,
            "checkpoint_and_decide_exit post_training_step_callbacks save_checkpoint_and_time train train_step",
        ),
    },
    "training.utils.train_utils": {
        **_all(
            METRICS,
            "MEMORY_KEYS calc_dtensor_params_l2_norm calc_params_l2_norm logical_and_across_model_parallel_group "
            "param_is_not_shared reduce_max_memory_across_pp_group reduce_max_stat_across_model_parallel_group "
            "report_l2_norm_grad report_memory report_runtime report_throughput start_memory_history_recording "
            "training_log",
        ),
        **_all(MODELS, "LinearForLastLayer create_value_head_hook freeze_moe_router make_value_model"),
        "ModelHook": "mb_trainer.run.user_code",
        "ModelList": "mb_models.gpt.value_head",
        **_all(LOOP, "maybe_inject_state needs_global_state_injection prepare_forward_step_func"),
        "logger": "mb_trainer.bridge._logger",
    },
    "training.comm_overlap": {
        **_all(
            "mb_overlap",
            "BulkOverlapCfg PipelineOverlapCfg RingExchangeOverlapCfg TPOverlapCfg TransformerLayerTPOverlapCfg "
            "userbuffers_bf16_b200_h12288_tp4_mbs1_seqlen2048 userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192 "
            "userbuffers_bf16_b200_h18432_tp8_mbs1_seqlen4096 userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096 "
            "userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192 userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048 "
            "userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192 userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048 "
            "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192 userbuffers_fp8_b200_h12288_tp4_mbs1_seqlen2048 "
            "userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192 userbuffers_fp8_b200_h18432_tp8_mbs1_seqlen4096 "
            "userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192 userbuffers_fp8_h100_h12288_tp4_mbs1_seqlen2048 "
            "userbuffers_fp8_h100_h16384_tp4_mbs1_seqlen2048_lora "
            "userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192 userbuffers_fp8_h100_h6144_tp2_mbs2_seqlen2048 "
            "userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192",
        ),
        "CommOverlapConfig": CONFIG,
    },
    "training.callbacks": CALLBACKS,
    "training.checkpointing": _all(
        "mb_checkpoint",
        "CheckpointLoadContext CheckpointManager CheckpointSaveContext DefaultCheckpointManager "
        "create_checkpoint_manager load_checkpoint save_checkpoint",
    ),
    "training.eval": _all(SEED_CALLS, "evaluate evaluate_and_print_results"),
    "training.finetune": {"finetune": "mb_trainer"},
    "training.mixed_precision": PRECISION,
    "training.pretrain": {"pretrain": "mb_trainer"},
    "training.state": {"GlobalState": "mb_trainer.run.state", "TrainState": LOOP},
    "training.tokenizers.config": {"TokenizerConfig": CONFIG},
    "data.datasets.packed_sequence": {"PackedSequenceSpecs": CONFIG},
    "recipes.utils.optimizer_utils": _all(
        "mb_config.schedules.annealing",
        "distributed_fused_adam_with_cosine_annealing distributed_fused_adam_with_cosine_annealing_samples "
        "distributed_muon_with_cosine_annealing",
    ),
    "models": _all("mb_trainer.bridge.providers", "GPTModelProvider MambaModelProvider T5ModelProvider"),
    "models.gpt_provider": {"GPTModelProvider": "mb_trainer.bridge.providers"},
    "models.t5_provider": {"T5ModelProvider": "mb_trainer.bridge.providers"},
    "models.mamba.mamba_provider": {"MambaModelProvider": "mb_trainer.bridge.providers"},
    "peft.base": {"PEFT": CONFIG},
    "peft.canonical_lora": {"CanonicalLoRA": CONFIG},
    "peft.dora": {"DoRA": CONFIG},
    "peft.lora": {"LoRA": CONFIG},
}


def resolver(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module of this package, which import a name when it is read."""
    names = NAMES[module.removeprefix("mb_trainer.bridge.")]

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, other = names[name].partition(":")
        return getattr(import_module(home), other or name)

    return find, lambda: sorted(names)
