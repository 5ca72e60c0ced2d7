"""Arguments that Megatron-LM or a custom script has already parsed, converted to a configuration."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from mb_config.megatron_lm.conversion import MegatronConversion, convert
from mb_config.megatron_lm.flag_table import MegatronFlagError, read_flags

_SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
"""Data type of torch -> its name on a command line of Megatron-LM."""

_DEFAULT_SOURCES: Mapping[str, str] = {
    "tensor_parallel_num_weight_shards": "tensor_model_parallel_size",
    "expert_tensor_parallel_num_weight_shards": "expert_tensor_parallel_size",
    "inprocess_active_world_size": "world_size",
    "eval_global_batch_size": "global_batch_size",
    "eval_micro_batch_size": "micro_batch_size",
    "encoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "expert_tensor_parallel_size": "tensor_model_parallel_size",
    "moe_ffn_hidden_size": "ffn_hidden_size",
    "lr_decay_iters": "train_iters",
    "lr_decay_samples": "train_samples",
}
"""Argument -> the one whose value Megatron-LM copies into it, when it validates the arguments, unless it is given."""

COMPUTED = frozenset(
    [
        "rank",
        "world_size",
        "local_rank",
        "data_parallel_size",
        "transformer_pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "padded_vocab_size",
        "params_dtype",
        "variable_seq_lengths",
        "gtp_weight_remat_size",
        "expert_gtp_weight_remat_size",
        "consumed_train_samples",
        "consumed_valid_samples",
        "skipped_train_samples",
        "consumed_train_bins",
        "iteration",
        "curr_iteration",
        "num_floating_point_operations_so_far",
        "do_train",
        "do_valid",
        "do_test",
        "model_type",
        "use_dist_ckpt",
        "heterogeneous_layers_config_encoded_json",
        "mtp_hybrid_override_pattern",
        "use_custom_fsdp",
        "phase_transition_iterations",
        "grpo_samples_per_iteration",
        "use_layer_wise_distributed_optimizer",
    ]
)
"""Arguments that Megatron-LM computes from the others, or from the run, when it validates them."""


def from_megatron_args(namespace: Any, *, ignore_unknown: bool = False) -> MegatronConversion:
    """Convert parsed arguments of Megatron-LM, `megatron.training.get_args()` for instance.

    The result is that of `mb config import-args` with the same command line, of which arguments at the defaults of
    Megatron-LM are not given. Arguments that validation has completed have the completed values.

    >>> from argparse import Namespace
    >>> args = Namespace(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=32, mock_data=True, lr=1e-3)
    >>> from_megatron_args(args).nested().get("optimizer")
    {'lr': 0.001, 'min_lr': 0.0}

    Args:
        namespace: Object with the arguments as attributes, or a mapping.
        ignore_unknown: Leave out arguments of custom code, which Megatron-LM does not know. The result names them in
            `left_out`. Names that begin with an underscore are always left out.

    Raises:
        MegatronFlagError: An argument is unknown, a value has no counterpart, or arguments contradict each other.
    """
    values = dict(namespace) if isinstance(namespace, Mapping) else dict(vars(namespace))
    unknown = sorted(
        name for name in values.keys() - read_flags().keys() - COMPUTED if not name.startswith("_")
    )
    if unknown and not ignore_unknown:
        raise MegatronFlagError(
            f"unknown arguments of Megatron-LM: {', '.join(unknown)}. ignore_unknown=True leaves them out."
        )
    return replace(convert(_completed(given_arguments(values), values)), left_out=tuple(unknown))


def given_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not at the default of Megatron-LM, nor at one that follows from the others."""
    flags = read_flags()
    given = {
        name: plain
        for name, value in values.items()
        if name in flags
        and name not in COMPUTED
        and (plain := _plain(value)) not in (None, "", flags[name].default)
    }
    for name, source in _DEFAULT_SOURCES.items():
        if name in given and given[name] == values.get(source):
            del given[name]
    # validation sets the two ends of a constant weight decay to weight_decay
    if values.get("weight_decay_incr_style", "constant") == "constant":
        given = {
            name: value
            for name, value in given.items()
            if name not in ("start_weight_decay", "end_weight_decay")
        }
    return given


def _completed(given: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments with the number of virtual stages, which validation computes from one of several.

    It replaces the arguments that it was computed from.
    """
    chunks = values.get("virtual_pipeline_model_parallel_size")
    if chunks is None or "num_virtual_stages_per_pipeline_rank" not in read_flags():
        return given
    others = {name: value for name, value in given.items() if name != "num_layers_per_virtual_pipeline_stage"}
    return {**others, "num_virtual_stages_per_pipeline_rank": chunks}


def _plain(value: Any) -> Any:
    """Return a value as a command line has it: a list of a tuple, the name of a data type or of a member of an enum.

    A member that is a number is that number.
    """
    if isinstance(value, Enum):
        return value.value if isinstance(value, int) else value.name
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    text = str(value).removeprefix("torch.")
    return _SHORT_DTYPES.get(text, text)
