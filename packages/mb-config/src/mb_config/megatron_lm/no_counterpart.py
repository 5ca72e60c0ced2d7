"""Reasons why a flag of Megatron-LM sets nothing in a configuration of this project."""

from collections.abc import Mapping
from typing import Any

from mb_config.megatron_lm.flag_table import Arguments, Flag

NO_EFFECT: Mapping[str, str] = {
    "deprecated_use_mcore_models": "always the case",
    "use_dist_ckpt_deprecated": "always the case",
    "ckpt_fully_parallel_save_deprecated": "the default",
    "use_flash_attn": "has no effect in Megatron Core; Transformer Engine chooses, or --attention-backend",
    "openai_gelu": "numerically the gelu of torch up to its approximation, which Megatron Core does not offer",
    "onnx_safe": "checkpoints are not exported through ONNX; mb export-hf writes Hugging Face folders",
    "override_ckpt_iteration": "checkpoint.ckpt_step selects the step to load",
    "batch_size": "Megatron-LM rejects it as well; use --micro-batch-size",
    "checkpoint_activations": "Megatron-LM rejects it as well; use --recompute-activations",
    "warmup": "Megatron-LM rejects it as well; use --lr-warmup-fraction",
    "model_parallel_size": "Megatron-LM rejects it as well; use --tensor-model-parallel-size",
    "yaml_cfg": "its values are the arguments",
    "ft_num_warmup_iters": "mb-resilience reports the first three steps as part of its section setup",
    "straggler_ctrlr_port": "mb-resilience has no control port",
    "disable_msc_deprecated": "the default: the local file system is used",
}
"""Argument -> reason, for arguments whose group does not have one."""

GROUPS: Mapping[str, str] = {
    "inference": "the trainer does not serve a model",
    "rl": "the trainer has no reinforcement learning",
    "vision": "Megatron-LM's vision models have no counterpart; see MimoModelConfig",
    "biencoder": "there is no biencoder model",
    "Logits Distillation": "the trainer has no distillation",
    "one logger": "there is no tracker of that kind; see the section logger",
    "autoresume": "there is no AutoResume; see train.exit_signal",
    "fault injector": "see ft.simulate_fault",
    "workload inspector": "there is no workload inspector server",
    "msc": "files are read through the local file system",
    "heterogeneous architecture": "layers of different kinds are described by a hybrid pattern",
    "sft": "see FinetuningDatasetConfig for fine-tuning data",
}
"""Title of a group in Megatron-LM's help -> reason for all its arguments without a counterpart."""


VALUES: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "ckpt_format": (("torch", "torch_dcp"), "checkpoints are written as torch_dist, which Megatron-LM reads"),
    "timing_log_level": ((1, 2), "timers of parts of a step synchronize with the device; use the profiler"),
    "test_mode": ((True,), "there is no such mode; the metrics of a run are in metrics.jsonl"),
    "is_hybrid_model": ((True,), "a hybrid is known by its pattern"),
    "init_model_with_meta_device": ((True,), "parameters are created on their device"),
}
"""Argument -> values that set nothing, and why."""

_ONLY_WITH_TOKENIZER = {
    "tiktoken_pattern": "TikTokenizer",
    "tiktoken_num_special_tokens": "TikTokenizer",
    "vocab_file": "GPT2BPETokenizer",
    "merge_file": "GPT2BPETokenizer",
}


def reason_of_value(dest: str, value: Any, arguments: Arguments) -> str | None:
    """Return why the value of an argument sets nothing; None if it sets a field."""
    values, reason = VALUES.get(dest, ((), ""))
    if value in values:
        return reason
    kind, needed = arguments["tokenizer_type"], _ONLY_WITH_TOKENIZER.get(dest)
    if needed is not None and kind not in (None, needed) and not kind.startswith("Bert"):
        return f"has no effect in Megatron-LM with --tokenizer-type {kind}"
    if dest == "tp_comm_overlap_cfg":
        return f"copy the contents of {value} to model.tp_comm_overlap_cfg"
    return None


def reason_without_counterpart(dest: str, flag: Flag) -> str:
    """Return why a flag sets nothing, which is that of the argument `dest`."""
    found = NO_EFFECT.get(dest) or GROUPS.get(flag.group)
    return found or "has no counterpart in this project"
