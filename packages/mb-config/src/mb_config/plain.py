"""Read a configuration without the packages that own its other sections: those stay plain mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mb_config.codec import TARGET, Reader, join
from mb_config.container import ConfigContainer
from mb_config.errors import ConfigReadError, raise_all
from mb_config.field_types import fit, hints, is_open
from mb_config.overrides import apply_overrides
from mb_config.provenance import Provenance
from mb_config.yaml_file import YamlFile, read_yaml

_REQUIRED = ("train", "model", "optimizer", "scheduler", "dataset", "logger", "tokenizer", "checkpoint")
_SIZE = int | None
_SWITCH = bool | None
_NAMES = str | list[str] | None

FOREIGN: Mapping[str, Any] = {
    "checkpoint.ckpt_format": str | None,
    "dataset.seq_length": _SIZE,
    "model.account_for_embedding_in_pipeline_split": _SWITCH,
    "model.account_for_loss_in_pipeline_split": _SWITCH,
    "model.bf16": _SWITCH,
    "model.context_parallel_size": _SIZE,
    "model.cp_comm_type": _NAMES,
    "model.cross_entropy_loss_fusion": _SWITCH,
    "model.cuda_graph_impl": str | None,
    "model.cuda_graph_modules": _NAMES,
    "model.cuda_graph_scope": _NAMES,
    "model.deterministic_mode": _SWITCH,
    "model.expert_model_parallel_size": _SIZE,
    "model.expert_tensor_parallel_size": _SIZE,
    "model.fine_grained_activation_offloading": _SWITCH,
    "model.fp16": _SWITCH,
    "model.hierarchical_context_parallel_sizes": list[int] | None,
    "model.inference_cuda_graph_scope": str | None,
    "model.num_attention_heads": _SIZE,
    "model.num_layers": _SIZE,
    "model.num_layers_in_first_pipeline_stage": _SIZE,
    "model.num_layers_in_last_pipeline_stage": _SIZE,
    "model.num_moe_experts": _SIZE,
    "model.num_query_groups": _SIZE,
    "model.pipeline_model_parallel_layout": Any,
    "model.pipeline_model_parallel_size": _SIZE,
    "model.seq_length": _SIZE,
    "model.sequence_parallel": _SWITCH,
    "model.tensor_model_parallel_size": _SIZE,
    "model.transformer_impl": str | None,
    "model.virtual_pipeline_model_parallel_size": _SIZE,
    "rerun_state_machine.check_for_nan_in_loss": _SWITCH,
}
"""Types of the fields of other packages that rules of this one read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """A configuration as far as this package knows it."""

    config: ConfigContainer
    """Sections of other packages are mappings; a section of ours that the file lacks has its defaults."""

    provenance: Provenance
    """Where each value came from."""

    known: tuple[str, ...]
    """Sections of ours that are there."""

    foreign: tuple[str, ...]
    """Sections of other packages that are there: read by the shared rules only."""

    absent: tuple[str, ...]
    """Sections that a run needs and that are not there."""

    def sections(self) -> dict[str, Any]:
        """What there is to check."""
        return {name: getattr(self.config, name) for name in (*self.known, *self.foreign)}


def read_plain(path: str | Path, overrides: Iterable[str] = ()) -> PlainConfig:
    """Read a YAML file and apply overrides. A class named by `_target_` is neither imported nor needed.

    Raises:
        ConfigReadError: everything that could not be read.
    """
    file = read_yaml(path)
    provenance = Provenance({item: file.locate(item) for item in file.lines})
    config = _build(file)
    apply_overrides(config, overrides, provenance=provenance)
    raise_all(_wrong_types(config, provenance))
    written = {item.partition(".")[0] for item in provenance.origins}
    every = [item.name for item in fields(config) if item.init and getattr(config, item.name) is not None]
    absent = [name for name in _REQUIRED if name not in written]
    there = [name for name in every if name not in absent]
    return PlainConfig(
        config=config,
        provenance=provenance,
        known=tuple(name for name in there if not _is_foreign(name)),
        foreign=tuple(name for name in there if _is_foreign(name)),
        absent=tuple(absent),
    )


def _build(file: YamlFile) -> ConfigContainer:
    data = {key: _without_targets(value) for key, value in file.data.items()}
    for name in _REQUIRED:
        data.setdefault(name, {})
    reader = Reader(root=ConfigContainer, locate=file.locate)
    config = reader.build(ConfigContainer, data, path="")
    raise_all(reader.errors)
    return config


def _is_foreign(name: str) -> bool:
    return is_open(hints(ConfigContainer)[name])


def _without_targets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_targets(item) for key, item in value.items() if key != TARGET}
    return [_without_targets(item) for item in value] if isinstance(value, list) else value


def _wrong_types(config: ConfigContainer, provenance: Provenance) -> list[ConfigReadError]:
    wrong = []
    for path, annotation in FOREIGN.items():
        name, _, leaf = path.partition(".")
        section = getattr(config, name)
        try:
            if isinstance(section, Mapping) and leaf in section:
                fit(section[leaf], annotation, path=join(name, leaf))
        except ConfigReadError as error:
            error.origin = provenance.origin(path)
            wrong.append(error)
    return wrong
