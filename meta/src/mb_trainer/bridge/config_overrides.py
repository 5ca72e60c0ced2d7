"""Overrides of a recipe in a script, under Megatron-Bridge's names. No torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mb_config import OverrideError, Provenance, apply_overrides, apply_yaml
from mb_config.trainer_api import YamlFile, merge_yaml, parse_override
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY

_DTYPE = re.compile(r"=torch\.(?=(float32|float16|bfloat16)$)")


def process_config_with_overrides(
    config: ConfigContainer,
    config_filepath: str | Path | None = None,
    cli_overrides: Sequence[str] | None = None,
) -> ConfigContainer:
    """Merge a YAML file into a configuration in place, then apply overrides in Hydra's grammar; return it.

    An override may name a dtype as torch does, such as `model.params_dtype=torch.bfloat16`.

    Raises:
        ConfigReadError: The file or an override cannot be read or applied.
    """
    if config_filepath is not None:
        apply_yaml(config, config_filepath)
    apply_overrides(config, [_DTYPE.sub("=", each) for each in cli_overrides or ()])
    return config


def create_omegaconf_dict_config(config_container: ConfigContainer) -> tuple[DictConfig, dict[str, Any]]:
    """Return the content of a configuration for OmegaConf, and what that cannot hold: nothing."""
    return OmegaConf.create(config_container.to_dict()), {}


def parse_hydra_overrides(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Apply overrides in Hydra's grammar to the content of a configuration, in place; return it.

    Raises:
        OverrideError: An override cannot be read, or deletes a field.
    """
    for text in overrides:
        override = parse_override(text)
        path = ".".join(override.keys)
        if override.kind == "delete":
            raise OverrideError(
                f"{text!r} deletes a field, which the configuration would keep. Write {path}=null.", path=path
            )
        OmegaConf.update(cfg, path, override.value)
    return cfg


def apply_content(
    config_obj: ConfigContainer, overrides_dict: Mapping[str, Any], excluded_fields: Mapping[str, Any]
) -> None:
    """Set the fields of a configuration that differ from a content, in place.

    Args:
        config_obj: Configuration.
        overrides_dict: Sections with their fields, some of them or all.
        excluded_fields: The second result of `create_omegaconf_dict_config`, which is empty.

    Raises:
        ConfigReadError: A field does not exist, or takes no such value.
    """
    del excluded_fields
    changed = _changed(config_obj.to_dict(), overrides_dict)
    merge_yaml(
        config_obj,
        YamlFile(name="overrides_dict", data=changed, lines={}),
        targets=REGISTRY.classes,
        provenance=Provenance.of(config_obj),
    )


def _changed(before: Any, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a nested mapping that differ from those before."""
    found = {}
    for name, value in after.items():
        old = before.get(name) if isinstance(before, Mapping) else None
        if value == old:
            continue
        found[name] = (
            _changed(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
        )
    return found
