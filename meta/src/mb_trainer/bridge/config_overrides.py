"""Overrides of a recipe in a script, under Megatron-Bridge's name. No torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from mb_config import apply_overrides, apply_yaml
from mb_trainer.config import ConfigContainer

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
