"""Runs and models: a config.json of Hugging Face, YAML with Megatron's fields, a Megatron-LM command line, or sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
NEEDED = ("layers", "hidden", "heads", "vocab")
"""Sizes that every plan needs."""
CURRENT = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
}
"""What models that are given by their sizes have, as Llama and its successors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """What a file, a command line or options have of a run."""

    sections: Mapping[str, Any]
    """Sections with Megatron's fields, at least "model"."""
    name: str = "model"
    """Name for titles."""
    notes: tuple[str, ...] = ()
    """What a plan does not take into account, as text for users."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Megatron's fields of the model."""
        fields: Mapping[str, Any] = self.sections["model"]
        return fields

    @property
    def has_layout(self) -> bool:
        """Whether it is a run with a parallel layout and a precision, and not a model alone."""
        return read_field(self.sections.get("train"), "micro_batch_size") is not None

    @property
    def missing(self) -> list[str]:
        """Sizes (`SIZES`) that every plan needs and that the source has not."""
        sizes = {name: read_field(self.model, SIZES[name]) for name in NEEDED}
        sizes["vocab"] = embedding_rows(self.sections)
        return [name for name, size in sizes.items() if size is None]

    def with_sizes(self, **sizes: int | None) -> RunSource:
        """Return the source with other sizes (`SIZES`); the vocabulary of a run is that of its tokenizer."""
        sections = {**self.sections, "model": {**self.model, **fields_of_sizes(**sizes)}}
        if self.has_layout and sizes.get("vocab") is not None:
            sections["tokenizer"] = {**(sections.get("tokenizer") or {}), "vocab_size": sizes["vocab"]}
            sections["model"]["vocab_size"] = None
        return replace(self, sections=sections)


def read_model(path: str | Path) -> dict[str, Any]:
    """Return Megatron's fields of the model in a file (`read_file`)."""
    source = read_file(Path(path))
    rows = embedding_rows(source.sections)
    return {**source.model, **({} if rows is None else {"vocab_size": rows})}


def embedding_rows(sections: Mapping[str, Any]) -> int | None:
    """Return the rows of the embedding of a run: those of the model, or those of the tokenizer with padding.

    `sections` has "model", and perhaps "tokenizer".
    """
    model, tokenizer = sections["model"], sections.get("tokenizer")
    rows: int | None = read_field(model, "vocab_size")
    entries = read_field(tokenizer, "vocab_size")
    if rows is not None or not entries:
        return rows
    if not read_field(tokenizer, "pad_vocab_size", True):
        return int(entries)
    multiple = (read_field(model, "make_vocab_size_divisible_by") or 128) * (
        read_field(model, "tensor_model_parallel_size") or 1
    )
    return -(-int(entries) // multiple) * multiple


def read_file(path: Path) -> RunSource:
    """Read a config.json, or YAML with Megatron's fields of a model, or with the sections of a run.

    Raises:
        ModelFileError: The file has another content, or a kind of model that is not known.
        OSError: The file cannot be read.
    """
    if path.is_dir():
        path = path / "config.json"
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if path.suffix == ".sh" or content.startswith(b"#!"):
        raise ModelFileError(
            f"{path}: is a shell script. Pass the command line that it starts, or convert it with "
            f"`mb-config import-args {path} --out run.yaml` and pass run.yaml."
        )
    settings = _json(path, content) if path.suffix == ".json" else _yaml(path, content)
    name = path.parent.name if path.name == "config.json" else path.stem
    if "model_type" in settings or "architectures" in settings:
        return RunSource(sections={"model": fields_of_config(settings)}, name=name)
    if "MODEL_ARGS" in settings:
        raise ModelFileError(
            f"{path}: is a test case of Megatron-LM. Convert it with `mb-config import-args {path} --out run.yaml` and "
            "pass run.yaml."
        )
    model = settings.get("model", settings)
    if not isinstance(model, Mapping) or "num_layers" not in {*model, *(model.get("transformer") or {})}:
        raise ModelFileError(
            f"{path}: has neither a model_type, as a config.json of Hugging Face has, nor Megatron's field num_layers. "
            "Name another file."
        )
    return RunSource(sections={"model": model} if model is settings else settings, name=name)


def read_command_line(line: str | Sequence[str]) -> RunSource:
    """Read a command line of Megatron-LM, with the defaults of Megatron-LM.

    Args:
        line: Text or words: a launcher, a program such as pretrain_gpt.py and its flags, or the flags alone.

    Raises:
        ModelFileError: A flag is unknown or not planned, lacks its value, or contradicts another one. The message
            names all such flags. None is ignored: `notes` has those that a plan does not distinguish.
    """
    command = import_module("mb_plan.megatron_lm.command_line").parse_command_line(line)
    sections = import_module("mb_plan.megatron_lm.sections").sections_of(command)
    return RunSource(sections=sections, name="run", notes=command.notes)


def _json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(content) if len(content) <= LARGEST else None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not JSON ({error}). Name another file.") from error
    if not isinstance(settings, dict):
        raise ModelFileError(f"{path}: has no settings at its top level. Name another file.")
    return settings


def _yaml(path: Path, content: bytes) -> dict[str, Any]:
    settings = parse_settings(content, import_module("yaml"))
    if settings is None:
        raise ModelFileError(f"{path}: is no YAML file of settings. Name another file.")
    return settings


def model_of_sizes(**sizes: int | None) -> dict[str, Any]:
    """Return Megatron's fields of a model by its sizes (`SIZES`), with the parts of Llama and its successors."""
    return {**CURRENT, **fields_of_sizes(**sizes)}


def fields_of_sizes(**sizes: int | None) -> dict[str, Any]:
    """Return Megatron's fields of the sizes (`SIZES`) that are given."""
    return {SIZES[name]: size for name, size in sizes.items() if size is not None}
