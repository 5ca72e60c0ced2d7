"""Models in files and options: a config.json of Hugging Face, a YAML file with Megatron's fields, or sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_plan.errors import ModelFileError
from mb_plan.shape.fields import read_field
from mb_plan.shape.hugging_face import fields_of_config
from mb_schema.yaml_settings import parse_settings

LARGEST = 1 << 24
"""Bytes of the largest file."""
SIZES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
    "experts": "num_moe_experts",
    "top_k": "moe_router_topk",
    "expert_ffn": "moe_ffn_hidden_size",
}
"""Option to Megatron's field."""
CURRENT = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
}
"""What models that are given by their sizes have, as Llama and its successors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """What a file has of a run; None: it has none."""

    model: Mapping[str, Any]
    """Megatron's fields of the model."""
    seq_length: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None


def read_model(path: str | Path) -> dict[str, Any]:
    """Return Megatron's fields of the model in a file (`read_model_file`)."""
    return dict(read_model_file(Path(path)).model)


def read_model_file(path: Path) -> ModelFile:
    """Read a config.json, or YAML with Megatron's fields of a model, or with the sections of a run.

    Raises:
        ModelFileError: The file has another content, or a kind of model that is not known.
        OSError: The file cannot be read.
    """
    if path.is_dir():
        path = path / "config.json"
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    found = _json(path, content) if path.suffix == ".json" else _yaml(path, content)
    if "model_type" in found or "architectures" in found:
        return ModelFile(model=fields_of_config(found))
    model = found.get("model", found)
    if not isinstance(model, Mapping) or "num_layers" not in {*model, *(model.get("transformer") or {})}:
        raise ModelFileError(
            f"{path}: has neither a model_type, as a config.json of Hugging Face has, nor Megatron's field num_layers. "
            "Name another file."
        )
    fields = {str(name): value for name, value in model.items()}
    train, dataset, tokenizer = (
        {} if model is found else found.get(name) or {} for name in ("train", "dataset", "tokenizer")
    )
    rows = read_field(tokenizer, "vocab_size")
    if rows and read_field(fields, "vocab_size") is None:
        fields["vocab_size"] = rows
    return ModelFile(
        model=fields,
        seq_length=read_field(dataset, "seq_length") or read_field(fields, "seq_length"),
        global_batch_size=read_field(train, "global_batch_size"),
        micro_batch_size=read_field(train, "micro_batch_size"),
    )


def _json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content[: LARGEST + 1]) if len(content) <= LARGEST else None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not JSON ({error}). Name another file.") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{path}: has no settings at its top level. Name another file.")
    return found


def _yaml(path: Path, content: bytes) -> dict[str, Any]:
    found = parse_settings(content, import_module("yaml"))
    if found is None:
        raise ModelFileError(f"{path}: is no YAML file of settings. Name another file.")
    return found


def model_of_sizes(**sizes: int | None) -> dict[str, Any]:
    """Return Megatron's fields of a model by its sizes (`SIZES`), with the parts of Llama and its successors."""
    return {**CURRENT, **fields_of_sizes(**sizes)}


def fields_of_sizes(**sizes: int | None) -> dict[str, Any]:
    """Return Megatron's fields of the sizes (`SIZES`) that are given."""
    return {SIZES[name]: size for name, size in sizes.items() if size is not None}
