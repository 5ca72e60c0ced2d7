"""Conversion of Megatron-LM's arguments to fields of this project.

Most flags set one field with the same meaning, which flags.json names. section_conversions.py converts those
that differ.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from mb_config.megatron_lm.flag_table import (
    Arguments,
    MegatronFlagError,
    option_of,
    parse_flags,
    parse_value,
    read_flags,
    without_flags,
)
from mb_config.megatron_lm.no_counterpart import reason_of_value, reason_without_counterpart
from mb_config.megatron_lm.script import ScriptWords, attention_backend, carried_variables
from mb_config.megatron_lm.section_conversions import CONVERSIONS, NO_EFFECT_WITHOUT, is_converted
from mb_schema.megatron_flags import TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronConversion:
    """Configuration converted from arguments of Megatron-LM."""

    given: Mapping[str, Any]
    """Dotted path -> value that follows from the given flags."""
    defaults: Mapping[str, Any]
    """Dotted path -> default of Megatron-LM that differs from the default of this project."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Flag -> reason why nothing is set for it."""
    left_out: tuple[str, ...] = ()
    """Arguments of custom code, which Megatron-LM does not know."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the section `env_vars`."""

    def nested(self) -> dict[str, Any]:
        """Return the configuration as nested mappings, with the sections that must be present."""
        result: dict[str, Any] = {name: {} for name in REQUIRED_SECTIONS}
        if self.variables:
            result["env_vars"] = {**self.variables}
        values = {**self.given, **self.defaults}
        for path, value in sorted(values.items(), key=lambda item: not item[0].endswith("._target_")):
            *parents, name = path.split(".")
            section = result
            for parent in parents:
                section = section.setdefault(parent, {})
            section[name] = value
        return result


REQUIRED_SECTIONS: tuple[str, ...] = (
    *("model", "train", "validation", "optimizer", "scheduler", "ddp"),
    *("dataset", "tokenizer", "logger", "checkpoint", "rng", "dist"),
)
"""Sections of a complete configuration, in order."""


DEFAULT_ONLY_WITH: Mapping[str, str] = {
    "kv_lora_rank": "multi_latent_attention",
    "rotary_scaling_factor": "multi_latent_attention",
    "optimizer_offload_fraction": "optimizer_cpu_offload",
    "data_parallel_sharding_strategy": "use_megatron_fsdp",
}
"""Argument -> the one without which it has no effect, so that its default is not written."""


def convert(given: Mapping[str, Any]) -> MegatronConversion:
    """Convert arguments.

    Args:
        given: dest -> value, as `parse_flags` returns.

    Raises:
        MegatronFlagError: Arguments contradict each other, or a value has no counterpart.
    """
    arguments, flags = Arguments(given), read_flags()
    explicit = {}
    for dest, value in given.items():
        flag = flags[dest]
        if flag.path and _reason_dropped(dest, arguments) is None:
            explicit[flag.path] = value if flag.type in TYPES else parse_value(value)
    defaults = {
        flag.path: flag.default
        for dest, flag in flags.items()
        if flag.write_default and dest not in given and arguments.uses(DEFAULT_ONLY_WITH.get(dest))
    }
    ours = section_defaults()
    for function, dests in CONVERSIONS.items():
        target = explicit if any(dest in given for dest in dests) else defaults
        target.update((path, value) for path, value in function(arguments) if ours.get(path, ...) != value)
    dropped = {
        option_of(dest): reason for dest in given if (reason := _reason_dropped(dest, arguments)) is not None
    }
    return MegatronConversion(
        given=explicit, defaults={k: v for k, v in defaults.items() if k not in explicit}, dropped=dropped
    )


def convert_script(
    script: ScriptWords, *, custom: Sequence[str] = (), ignore_unknown: bool = False
) -> MegatronConversion:
    """Convert the arguments of a script, with the environment variables that it sets for its training.

    Args:
        script: The arguments.
        custom: Flags of custom code, which are left out.
        ignore_unknown: Leave out all flags that Megatron-LM does not know.

    Raises:
        MegatronFlagError: A flag is unknown or cannot be converted, or a YAML file has the arguments instead.
    """
    kept, left_out = without_flags(script.words, custom, unknown=ignore_unknown)
    variables, _ = carried_variables(script.environment)
    given = parse_flags(kept)
    if given.get("yaml_cfg"):
        raise MegatronFlagError(
            f"--yaml-cfg {given['yaml_cfg']}: Megatron-LM takes all arguments from that file and none from the command "
            "line, and such files are not read here. Pass its values as flags."
        )
    backend = attention_backend(script.environment)
    if backend is not None:
        given.setdefault("attention_backend", backend)
    return replace(convert(given), left_out=tuple(shlex.join(flag) for flag in left_out), variables=variables)


def _reason_dropped(dest: str, arguments: Arguments) -> str | None:
    """Return why a given argument sets nothing; None if it sets a field."""
    needed = NO_EFFECT_WITHOUT.get(dest)
    if needed is not None and not arguments.uses(needed):
        return f"has no effect in Megatron-LM without {option_of(needed)}"
    if dest == "sequence_parallel" and arguments["tensor_model_parallel_size"] == 1:
        return "has no effect in Megatron-LM without tensor parallelism"
    if dest == "cp_comm_type" and arguments["context_parallel_size"] == 1:
        return "has no effect in Megatron-LM without context parallelism"
    if dest == "split" and arguments["mock_data"]:
        return "has no effect in Megatron-LM with --mock-data, whose splits are of equal size"
    reason = reason_of_value(dest, arguments[dest], arguments)
    if reason is not None:
        return reason
    flag = read_flags()[dest]
    return None if flag.path or is_converted(dest) else reason_without_counterpart(dest, flag)


@cache
def section_defaults() -> Mapping[str, Any]:
    """Return path -> default of this project, for the fields that the functions of this module set."""
    found: dict[str, Any] = json.loads(
        files("mb_config.megatron_lm").joinpath("section_defaults.json").read_text(encoding="utf-8")
    )
    return found
