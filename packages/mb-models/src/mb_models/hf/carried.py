"""Small files of a Hugging Face folder that checkpoints carry along, for an export. Standard library only.

generation_config.json keeps its name; config.json is kept as hf_config.json. An export takes from it what no section of
ours holds: the family, the number of tokens without padding, and the ids of special tokens.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mb_models.hf.family import WITHOUT_EFFECT
from mb_models.hf.text_part import text_config

GENERATION = "generation_config.json"
TEMPLATE = "hf_config.json"
_OF_THE_FILE = frozenset(
    {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "auto_map"}
)


def carry_files(sources: Iterable[Path], target: Path) -> None:
    """Copy the files of the first source that has them, a Hugging Face folder or a checkpoint, to a checkpoint."""
    for source in sources:
        template = next(
            (source / name for name in (TEMPLATE, "config.json") if (source / name).is_file()), None
        )
        if template is None:
            continue
        shutil.copyfile(template, target / TEMPLATE)
        if (source / GENERATION).is_file():
            shutil.copyfile(source / GENERATION, target / GENERATION)
        return


def read_template(checkpoint: Path) -> Mapping[str, Any]:
    """Return the config.json that a checkpoint carries; an empty mapping if it has none or an unreadable one.

    That of a model with an image encoder is the one of its text part.
    """
    try:
        content = json.loads((checkpoint / TEMPLATE).read_text(encoding="utf-8"))
        return text_config(content) if isinstance(content, dict) else {}
    except (OSError, ValueError):
        return {}


def from_template(content: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with the fields of the template that do not change the logits, such as ids of tokens."""
    names = {name for name in WITHOUT_EFFECT - _OF_THE_FILE if content.get(name) is None}
    return {**content, **{name: template[name] for name in sorted(names) if template.get(name) is not None}}
