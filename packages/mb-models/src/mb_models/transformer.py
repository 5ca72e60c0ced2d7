"""From a model section to Megatron's TransformerConfig: names become dtypes and functions, and nothing is dropped."""

import difflib
from dataclasses import fields
from types import MappingProxyType

import torch
import torch.nn.functional as F
from megatron.core.activations import fast_gelu, quick_gelu, squared_relu
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.config import TransformerFields
from mb_models.kernels import gpu_only_settings
from mb_models.rules import BUILD_RULES, ModelConfigError, broken_rules

DTYPES = MappingProxyType({name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")})
"""Name -> dtype."""

ACTIVATIONS = MappingProxyType(
    {
        "gelu": F.gelu,
        "silu": F.silu,
        "relu": F.relu,
        "squared_relu": squared_relu,
        "quick_gelu": quick_gelu,
        "fast_gelu": fast_gelu,
    }
)
"""Name -> function. Megatron compares with these very objects when it decides what it can fuse."""

NAMED_VALUES = MappingProxyType(
    {
        "params_dtype": DTYPES,
        "pipeline_dtype": DTYPES,
        "autocast_dtype": DTYPES,
        "mamba_training_ssm_states_dtype": DTYPES,
        "activation_func": ACTIVATIONS,
        "attention_backend": AttnBackend.__members__,
    }
)
"""Field whose value is a name -> what the names stand for."""

OWN_FIELDS = frozenset({"transformer", "tp_comm_overlap_cfg"})
"""Fields of the section that Megatron's TransformerConfig is not meant to have."""


def transformer_config(config: TransformerFields, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration from a model section; the section is not changed.

    On a device without CUDA the settings of `mb_models.kernels.gpu_only_settings` are replaced. A single virtual
    stage counts as none, an unset pipeline_dtype is params_dtype, and cuda_graph_modules "full" is the empty list,
    as Megatron now calls it. Reads no process group.

    Raises:
        ModelConfigError: a rule of `mb_models.rules` is broken, a name stands for nothing, or the installed Megatron
            Core lacks a field (it would be dropped); all reasons at once.
        ValueError: Megatron's own checks refuse the values.
    """
    names = [item.name for item in fields(TransformerFields) if item.name not in OWN_FIELDS]
    replaced = {} if device.type == "cuda" else gpu_only_settings(config)
    values = {name: getattr(config, name) for name in names} | replaced
    section = {f"model.{item.name}": getattr(config, item.name) for item in fields(config)}
    section |= {f"model.{name}": value for name, value in replaced.items()}
    problems = broken_rules(BUILD_RULES, section) or unknown_names([*values, *config.transformer])
    if problems:
        raise ModelConfigError(problems)
    if config.virtual_pipeline_model_parallel_size == 1:
        values["virtual_pipeline_model_parallel_size"] = None
    if config.cuda_graph_modules == "full":
        values["cuda_graph_modules"] = []
    values["pipeline_dtype"] = config.pipeline_dtype or config.params_dtype
    return TransformerConfig(**from_names(values | config.transformer))


def unknown_names(names: list[str]) -> list[str]:
    """Return one line for each name that is no field of the installed TransformerConfig."""
    known = [item.name for item in fields(TransformerConfig)]
    problems = []
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "nothing like it"
            problems.append(
                f"model.transformer.{name}: no such field, because Megatron Core's TransformerConfig has none of that "
                f"name and would never see the value. Nearest: {near}."
            )
    return problems


def from_names(values: dict[str, object]) -> dict[str, object]:
    """Replace names by the dtypes, functions and enum members that they stand for; other values pass as they are.

    Raises:
        ModelConfigError: a name stands for nothing.
    """
    problems = [
        f"model.{field}: {values[field]!r} stands for nothing, because it is none of {', '.join(table)}. "
        "Use one of them."
        for field, table in NAMED_VALUES.items()
        if isinstance(values.get(field), str) and values[field] not in table
    ]
    if problems:
        raise ModelConfigError(problems)
    return {
        name: NAMED_VALUES[name][value] if name in NAMED_VALUES and isinstance(value, str) else value
        for name, value in values.items()
    }
