"""What the recipes of Megatron-Bridge have in common, and datasets by name, with its names and values. No torch."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mb_config.trainer_api import distributed_fused_adam_with_cosine_annealing
from mb_data.trainer_api import (
    ChatSFTPreprocessingConfig,
    HFDatasetSourceConfig,
    PromptCompletionSFTPreprocessingConfig,
)
from mb_trainer.bridge.container import ConfigContainer
from mb_trainer.config import (
    PEFT,
    CheckpointConfig,
    DistributedDataParallelConfig,
    DoRA,
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    LoggerConfig,
    LoRA,
    MockGPTDatasetConfig,
    PackedSequenceSpecs,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)

DEFAULT_NULL_TOKENIZER_VOCAB_SIZE = 32000
COMMON_RECIPE_ENV_VARS: dict[str, str | int | float | bool] = {
    "NCCL_GRAPH_REGISTER": 0,
    "NCCL_NVLS_ENABLE": 0,
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": 1,
    "TORCH_NCCL_HIGH_PRIORITY": 1,
}
"""Environment variables of every recipe."""


def _pretrain_common() -> ConfigContainer:
    """Return a configuration for pretraining without a model, on mock data."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=500, max_lr=3e-4, min_lr=3e-5
    )
    return _container(
        train=TrainingConfig(
            train_iters=300_000,
            global_batch_size=32,
            micro_batch_size=2,
            manual_gc=True,
            manual_gc_interval=100,
            manual_gc_eval=100,
        ),
        validation=ValidationConfig(eval_interval=500, eval_iters=32),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(
            check_for_nan_in_grad=True,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            average_in_collective=True,
            data_parallel_sharding_strategy="optim_grads_params",
            use_distributed_optimizer=True,
        ),
        dataset=documents(
            GPTDatasetConfig,
            seq_length=4096,
            random_seed=1234,
            skip_getting_attention_mask_from_dataset=True,
        ),
        log_interval=10,
        save_interval=500,
        seed=1234,
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", use_tokenizer_vocab_size=True),
    )


def _sft_common() -> ConfigContainer:
    """Return a configuration for fine-tuning all parameters without a model, on SQuAD."""
    return _finetuning(max_lr=5e-6)


def _peft_common() -> ConfigContainer:
    """Return a configuration for LoRA without a model, on SQuAD."""
    return _finetuning(max_lr=1e-4, peft=LoRA(dim=32, alpha=32))


def _finetuning(*, max_lr: float, peft: PEFT | None = None) -> ConfigContainer:
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=50, max_lr=max_lr, min_lr=0.0, adam_beta2=0.98
    )
    return _container(
        train=TrainingConfig(train_iters=1000, global_batch_size=128, micro_batch_size=1),
        validation=ValidationConfig(eval_interval=100, eval_iters=32),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(check_for_nan_in_grad=True, grad_reduce_in_fp32=True),
        dataset=default_squad_config(seq_length=2048),
        log_interval=1,
        save_interval=100,
        seed=5678,
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer"),
        peft=peft,
    )


def documents(kind: type[GPTDatasetConfig], *, seq_length: int, **values: Any) -> GPTDatasetConfig:
    """Return the section of data for pretraining, of files or mock, with further values."""
    return kind(
        seq_length=seq_length,
        reset_attention_mask=False,
        reset_position_ids=False,
        eod_mask_loss=False,
        num_dataset_builder_threads=1,
        split="9999,8,2",
        data_sharding=True,
        dataloader_type="single",
        **values,
    )


def default_squad_config(
    seq_length: int, enable_offline_packing: bool = True, pad_seq_to_mult: int = 1
) -> FinetuningDatasetConfig:
    """Return SQuAD, in packs by default."""
    config = _hub_data("squad", seq_length, enable_offline_packing, pad_seq_to_mult, workers=1)
    config.hf_validation_proportion = 0.1
    config.dataset_kwargs = {"pad_to_max_length": True} if enable_offline_packing else {}
    return config


def default_tulu3_config(
    seq_length: int = 4096, enable_offline_packing: bool = False, pad_seq_to_mult: int = 1
) -> FinetuningDatasetConfig:
    """Return the conversations of Tulu 3."""
    config = _hub_data("tulu3", seq_length, enable_offline_packing, pad_seq_to_mult)
    config.preprocessing = ChatSFTPreprocessingConfig()
    config.hf_validation_proportion = 0.05
    return config


def default_openmathinstruct2_config(
    seq_length: int = 4096, enable_offline_packing: bool = False, pad_seq_to_mult: int = 1
) -> FinetuningDatasetConfig:
    """Return the problems of OpenMathInstruct-2."""
    config = _hub_data("openmathinstruct2", seq_length, enable_offline_packing, pad_seq_to_mult)
    config.hf_validation_proportion = 0.05
    return config


def default_openmathinstruct2_thinking_config(**_values: Any) -> FinetuningDatasetConfig:
    """Reject the variant with reasoning, whose rows are rewritten by code.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "openmathinstruct2_thinking: is not supported, because its rows become conversations by code. Write them to "
        "training.jsonl with `messages`, and set dataset.dataset_root to the folder."
    )


def default_gsm8k_config(
    seq_length: int = 2048, enable_offline_packing: bool = False, pad_seq_to_mult: int = 1
) -> FinetuningDatasetConfig:
    """Return the problems of GSM8K, with its test."""
    config = _hub_data("gsm8k", seq_length, enable_offline_packing, pad_seq_to_mult)
    config.do_validation, config.do_test = False, True
    return config


def _hub_data(
    name: str, length: int, packs: bool, multiple: int, *, workers: int = 2
) -> FinetuningDatasetConfig:
    specs = PackedSequenceSpecs(packed_sequence_size=length, pad_seq_to_mult=multiple) if packs else None
    return FinetuningDatasetConfig(
        seq_length=length,
        hf_dataset=HFDatasetSourceConfig(dataset_name=name),
        preprocessing=PromptCompletionSFTPreprocessingConfig(
            prompt_column="input", completion_column="output", separator=" "
        ),
        enable_offline_packing=packs,
        packed_sequence_specs=specs,
        do_test=False,
        seed=5678,
        dataloader_type="batch",
        num_workers=workers,
        pin_memory=True,
        persistent_workers=False,
    )


def _container(*, log_interval: int, save_interval: int, seed: int, **sections: Any) -> ConfigContainer:
    folder = Path.cwd() / "nemo_experiments" / "default"
    checkpoints = str(folder / "checkpoints")
    return ConfigContainer(
        model=None,  # type: ignore[arg-type] # that of the recipe
        logger=LoggerConfig(
            log_interval=log_interval,
            tensorboard_dir=str(folder / "tb_logs"),
            log_timers_to_tensorboard=True,
        ),
        checkpoint=CheckpointConfig(
            save_interval=save_interval,
            save=checkpoints,
            load=checkpoints,
            ckpt_format="torch_dist",
            fully_parallel_save=True,
        ),
        rng=RNGConfig(seed=seed),
        mixed_precision="bf16_mixed",
        **sections,
    )


def default_peft_config(peft_scheme: str | PEFT | None, **values: Any) -> PEFT | None:
    """Return the adapters of a name, "lora" or "dora", or of an object; None: all parameters are trained.

    Raises:
        ValueError: The name is another one.
    """
    if peft_scheme is None or isinstance(peft_scheme, PEFT):
        return peft_scheme
    kinds: dict[str, type[LoRA]] = {"lora": LoRA, "dora": DoRA}
    name = str(peft_scheme).lower()
    if name != "none" and name not in kinds:
        raise ValueError(f"peft_scheme: {peft_scheme!r} is unknown. Use lora, dora or None.")
    return None if name == "none" else kinds[name](**values)


def apply_determinism_overrides(cfg: ConfigContainer) -> None:
    """Make a configuration reproducible bit for bit, in place."""
    cfg.model.deterministic_mode = True
    cfg.model.cross_entropy_loss_fusion = False
    cfg.env_vars = {
        **cfg.env_vars,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Ring",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0,
    }
    if cfg.comm_overlap is not None:
        cfg.comm_overlap.tp_comm_overlap = False


def apply_flex_dispatcher_backend(model_config: Any, moe_flex_dispatcher_backend: str | None = None) -> None:
    """Exchange tokens with a backend, "deepep", "hybridep" or "ncclep", in a model with experts; None: leave it.

    `mb check` reports whether the GPUs of the run support it.
    """
    if model_config.num_moe_experts and moe_flex_dispatcher_backend in ("deepep", "hybridep", "ncclep"):
        model_config.moe_token_dispatcher_type = "flex"
        model_config.moe_flex_dispatcher_backend = moe_flex_dispatcher_backend
        model_config.moe_shared_expert_overlap = False


def set_cuda_graph_modules(config: Any, modules: Any) -> None:
    """Capture the CUDA graphs of these modules of a layer."""
    listed = modules.split(",") if isinstance(modules, str) else modules
    config.cuda_graph_modules = [] if listed == ["full"] else list(listed or [])


def warn_deprecated_model(model_name: str, *, stacklevel: int = 2) -> None:
    """Return: models that Megatron-Bridge will drop are kept here."""


def _local_rows(*, seq_length: int) -> FinetuningDatasetConfig:
    return FinetuningDatasetConfig(
        seq_length=seq_length,
        preprocessing=PromptCompletionSFTPreprocessingConfig(
            prompt_column="input", completion_column="output", separator=" "
        ),
        dataloader_type="batch",
        seed=5678,
    )


DATASET_PRESETS: Mapping[str, Callable[..., Any]] = {
    "mock": partial(documents, MockGPTDatasetConfig),
    "megatron-indexed": partial(documents, GPTDatasetConfig),
    "squad": partial(default_squad_config, enable_offline_packing=False),
    "tulu3": default_tulu3_config,
    "openmathinstruct2": default_openmathinstruct2_config,
    "gsm8k": default_gsm8k_config,
    "local-jsonl": _local_rows,
}
"""Name of a dataset -> function of `seq_length` that returns its section."""


def build_dataset_config(config: ConfigContainer, dataset_name: str) -> Any:
    """Return the section of a dataset, with the sequence length of the model.

    Raises:
        ValueError: There is no such dataset here.
    """
    if dataset_name not in DATASET_PRESETS:
        raise ValueError(
            f"dataset_name: {dataset_name!r} is not here. Use one of {', '.join(DATASET_PRESETS)}, or a section of "
            "mb_trainer.config."
        )
    return DATASET_PRESETS[dataset_name](seq_length=config.model.seq_length)


def dataset_train_mode(dataset_config: Any) -> Literal["pretrain", "finetune"]:
    """Return the function that trains on a section."""
    return "pretrain" if isinstance(dataset_config, GPTDatasetConfig) else "finetune"
