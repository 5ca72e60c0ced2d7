"""Conversion of a model section to Megatron's TransformerConfig, without dropping any field."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.activations import fast_gelu, squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # the one of two with which Megatron compares
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from mb_models.config import GPTModelConfig, TransformerFields
from mb_models.errors import ModelConfigError
from mb_models.gpt.variant_fields import LatentAttentionFields, YarnFields
from mb_models.rules import BUILD_RULES, violated_rules
from mb_models.training.gpu_only import gpu_only_settings
from mb_schema.rules import Rule
from mb_schema.value_types import reject_wrong_types

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
"""Name -> function. Megatron compares with these objects when it decides which operations to fuse."""

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
"""Field whose value is a name -> table of the values by name."""

SECTION_ONLY_FIELDS = frozenset({"transformer", "tp_comm_overlap_cfg"})
"""Fields of the section that are not passed to Megatron's TransformerConfig."""

LATENT = frozenset(item.name for item in fields(LatentAttentionFields))
"""Fields that only Megatron's MLATransformerConfig has, and the switch between the two classes."""


@dataclass
class YarnTransformerConfig(TransformerConfig):  # type: ignore[misc]
    """Megatron's configuration with the fields that its GPT reads for YaRN; other models may not have these fields."""

    yarn_rotary_scaling_factor: float = 1.0
    yarn_original_max_position_embeddings: int = 4096
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float = 1.0
    yarn_mscale_all_dim: float = 0.0
    yarn_correction_range_round_to_int: bool = True


def transformer_config(config: TransformerFields, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration from a model section; the section is not modified.

    On a device without CUDA the settings of `gpu_only_settings` are replaced. A single virtual
    stage counts as none, an unset pipeline_dtype is params_dtype, and cuda_graph_modules "full" becomes the empty list,
    Megatron's current form. Reads no process group.

    Raises:
        ModelConfigError: a rule of `mb_models.rules` is violated, a name is unknown, or the installed Megatron
            Core lacks a field (it would be dropped), all reasons at once; or Megatron's own checks reject the values.
    """
    reject_violations(config, device=device)
    return convert_fields(config, device=device)


def convert_fields(config: TransformerFields, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration from a model section, or from the fields that another family shares with GPT.

    Raises:
        ModelConfigError: a name is unknown, the installed Megatron Core lacks a field, or Megatron's own checks reject
            the values.
    """
    kind, names = megatron_class(config)
    replaced = {} if device.type == "cuda" else gpu_only_settings(config)
    further: Any = replaced.pop("transformer", config.transformer)
    values = {name: getattr(config, name) for name in names} | replaced
    problems = unknown_names([*values, *further], kind)
    if problems:
        raise ModelConfigError(problems)
    if config.virtual_pipeline_model_parallel_size == 1:
        values["virtual_pipeline_model_parallel_size"] = None
    if config.cuda_graph_modules == "full":
        values["cuda_graph_modules"] = []
    values["pipeline_dtype"] = config.pipeline_dtype or config.params_dtype
    named = resolve_names(values | further)
    try:
        return kind(**named)
    except (ValueError, AssertionError, NotImplementedError) as error:  # what no rule of this package covers
        reason = (str(error).strip() or "an assertion without a message").rstrip(".")
        raise ModelConfigError(
            [
                f"model: Megatron Core rejects the combination of its fields: {reason}. Change the fields that it "
                "names."
            ]
        ) from error


def reject_violations(
    config: TransformerFields, *, device: torch.device, rules: Sequence[Rule] = BUILD_RULES
) -> None:
    """Reject a section of any family that violates rules, with the values that it would be built with on the device.

    Raises:
        ModelConfigError: all reasons at once.
        FieldTypeError: values have a wrong type.
    """
    reject_wrong_types(config, path="model")
    replaced = {} if device.type == "cuda" else gpu_only_settings(config)
    section = {item.name: getattr(config, item.name) for item in fields(config)} | replaced
    problems = violated_rules(rules, {f"model.{name}": value for name, value in section.items()})
    if problems:
        raise ModelConfigError(problems)


def megatron_class(config: TransformerFields) -> tuple[type[TransformerConfig], list[str]]:
    """Return Megatron's configuration class for a section, and the fields of the section that are passed to it."""
    names = [item.name for item in fields(TransformerFields) if item.name not in SECTION_ONLY_FIELDS | LATENT]
    if config.multi_latent_attention:
        rotary = [item.name for item in fields(config) if item.name in ("rotary_base", "rotary_percent")]
        return MLATransformerConfig, [*names, *rotary, *sorted(LATENT)]
    if isinstance(config, GPTModelConfig) and config.position_embedding_type == "yarn":
        return YarnTransformerConfig, [*names, *(item.name for item in fields(YarnFields))]
    return TransformerConfig, names


def unknown_names(names: list[str], kind: type[TransformerConfig] = TransformerConfig) -> list[str]:
    """Return one line for each name that is not a field of the installed TransformerConfig, or of a subclass."""
    field_names = [item.name for item in fields(kind)]
    problems = []
    for name in names:
        if name not in field_names:
            near = (
                ", ".join(difflib.get_close_matches(str(name)[:100], field_names, n=3)) or "nothing like it"
            )
            problems.append(
                f"model.transformer.{name}: no such field, because Megatron Core's TransformerConfig has no field of "
                f"that name and would ignore the value. Nearest: {near}."
            )
    return problems


def resolve_names(values: dict[str, object]) -> dict[str, object]:
    """Replace names by the dtypes, functions and enum members that they denote; other values are unchanged.

    Raises:
        ModelConfigError: a name is unknown.
    """
    problems = [
        f"model.{field}: {values[field]!r} is unknown, because it is none of {', '.join(table)}. "
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
