"""Overrides of a recipe in a script, under Megatron-Bridge's name. No torch."""

from collections.abc import Sequence
from pathlib import Path

from mb_config import apply_overrides, apply_yaml
from mb_trainer.config import ConfigContainer


def process_config_with_overrides(
    config: ConfigContainer,
    config_filepath: str | Path | None = None,
    cli_overrides: Sequence[str] | None = None,
) -> ConfigContainer:
    """Merge a YAML file into a configuration in place, then apply overrides in Hydra's grammar; return it.

    Raises:
        ConfigReadError: The file or an override cannot be read or applied.
    """
    if config_filepath is not None:
        apply_yaml(config, config_filepath)
    apply_overrides(config, cli_overrides or ())
    return config
