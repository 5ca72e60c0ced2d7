"""Small files of a Hugging Face folder that checkpoints carry along, for an export. No torch.

generation_config.json keeps its name; config.json is kept as hf_config.json. An export takes from it what no section of
ours holds: the family, the number of tokens without padding, the ids of special tokens, the length that the model was
made for, and fields that only transformers reads.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mb_models.errors import HuggingFaceError
from mb_models.hf.config_json import section_of
from mb_models.hf.family import WITHOUT_EFFECT, Section
from mb_models.hf.section_fields import differences
from mb_models.hf.text_part import text_config

GENERATION = "generation_config.json"
TEMPLATE = "hf_config.json"
_OF_THE_FILE = frozenset(
    {
        "model_type",
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "auto_map",
        "quantization_config",
    }
)
_POSITIONS = "max_position_embeddings"


def carry_files(sources: Iterable[Path], target: Path) -> None:
    """Copy the files of the first source that has them, a Hugging Face folder or a checkpoint, to a checkpoint."""
    for source in sources:
        template = _template_of(source)
        if template is None:
            continue
        shutil.copyfile(template, target / TEMPLATE)
        if (source / GENERATION).is_file():
            shutil.copyfile(source / GENERATION, target / GENERATION)
        return


def read_template(folder: Path) -> Mapping[str, Any]:
    """Return the config.json of a Hugging Face folder, or the one that a checkpoint carries.

    It is empty if there is none or an unreadable one. That of a model with an image encoder is the one of its text
    part.
    """
    template = _template_of(folder)
    if template is None:
        return {}
    try:
        content = json.loads(template.read_text(encoding="utf-8"))
        return text_config(content) if isinstance(content, dict) else {}
    except (OSError, ValueError):
        return {}


def stop_tokens(folder: Path) -> frozenset[int]:
    """Return the tokens at which transformers ends a text of the model: those of generation_config.json, if any."""
    try:
        content = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    named = content.get("eos_token_id") if isinstance(content, dict) else None
    return frozenset(
        each for each in (named if isinstance(named, list) else [named]) if isinstance(each, int)
    )


def _template_of(folder: Path) -> Path | None:
    return next((folder / name for name in (TEMPLATE, "config.json") if (folder / name).is_file()), None)


def from_template(
    content: Mapping[str, Any], template: Mapping[str, Any], *, config: Section
) -> dict[str, Any]:
    """Return the config.json of a section with what the template adds to it.

    These are ids of tokens and other fields that do not change the logits, and all others that the section has no
    counterpart of while the model computes the same. `max_position_embeddings` is that of the template, or the length
    of training if that is longer, unless the section sets it.
    """
    found = {**content}
    if _POSITIONS in content and config.max_position_embeddings is None:
        named = template.get(_POSITIONS)
        found[_POSITIONS] = max(config.seq_length, named if isinstance(named, int) else 0)
    names = [
        name
        for name in sorted(template)
        if found.get(name) is None and name not in _OF_THE_FILE and not name.startswith("_")
    ]
    completed = {**found, **{name: template[name] for name in names}}
    if _compute_the_same(completed, content):
        return completed
    return {**found, **{name: template[name] for name in names if name in WITHOUT_EFFECT}}


def _compute_the_same(content: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        sections = [section_of(each, dtype="float32") for each in (content, other)]
    except HuggingFaceError:
        return False
    return not differences(*sections)
