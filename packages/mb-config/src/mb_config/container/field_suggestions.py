"""Suggestions for misspelled field names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches

from mb_config.errors import UnknownKeyError
from mb_schema.value_types import dataclasses_of, hints

OTHER_TRAINERS = {
    "adam_epsilon": "optimizer.adam_eps",
    "block_size": "model.seq_length",
    "context_parallel_degree": "model.context_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "eval_steps": "validation.eval_interval",
    "gradient_accumulation_steps": "train.global_batch_size",
    "gradient_checkpointing": "model.recompute_granularity",
    "intermediate_size": "model.ffn_hidden_size",
    "learning_rate": "optimizer.lr",
    "local_batch_size": "train.micro_batch_size",
    "logging_steps": "logger.log_interval",
    "lr_scheduler_type": "scheduler.lr_decay_style",
    "max_grad_norm": "optimizer.clip_grad",
    "max_steps": "train.train_iters",
    "n_embd": "model.hidden_size",
    "n_head": "model.num_attention_heads",
    "n_layer": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "num_key_value_heads": "model.num_query_groups",
    "num_train_epochs": "train.num_epochs",
    "output_dir": "checkpoint.save",
    "per_device_train_batch_size": "train.micro_batch_size",
    "pipeline_parallel_degree": "model.pipeline_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "save_steps": "checkpoint.save_interval",
    "tensor_parallel_degree": "model.tensor_model_parallel_size",
    "tp": "model.tensor_model_parallel_size",
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "vp": "model.virtual_pipeline_model_parallel_size",
    "warmup_ratio": "scheduler.lr_warmup_fraction",
    "warmup_steps": "scheduler.lr_warmup_iters",
}
"""Names of Hugging Face's Trainer and models, torchtitan, DeepSpeed and nanoGPT, and the field that sets the same."""


def unknown_key_error(path: str, siblings: Iterable[str], root: object) -> UnknownKeyError:
    """Return the error for an unknown key, with the nearest names.

    Searches the `siblings` of the key first, then the last part of its path in all sections of `root`
    (a dataclass or an instance of one) and among the names of other trainers.
    """
    nearest = nearest_paths(path, siblings, root)
    owners = owners_of(path, root)
    if owners:
        message = (
            f"no such field in this class: only {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it. "
            f"Write _target_: {owners[0]} in {path.rpartition('.')[0]}"
        )
        return UnknownKeyError(message, path=path, nearest=nearest)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return UnknownKeyError(f"no such field{hint}", path=path, nearest=nearest)


def owners_of(path: str, root: object) -> list[str]:
    """Return at most three of the possible classes of a section that have the field of a path."""
    section, _, leaf = path.partition(".")
    if not leaf or not is_dataclass(root):
        return []
    cls = root if isinstance(root, type) else type(root)
    candidates = dataclasses_of(hints(cls).get(section))
    return [cls.__name__ for cls in candidates if leaf in section_fields(cls)][:3]


def nearest_paths(path: str, siblings: Iterable[str], root: object) -> list[str]:
    """Return at most three paths, the most similar first."""
    parent, _, leaf = path.rpartition(".")
    names = list(siblings)
    close = get_close_matches(leaf, names, n=2, cutoff=0.85) or get_close_matches(
        leaf, names, n=2, cutoff=0.7
    )
    found = [f"{parent}.{name}" if parent else name for name in close]
    every = [f"{name}.{field}" for name, inside in _sections(root).items() for field in inside]
    found += [candidate for candidate in every if candidate.rpartition(".")[2] == leaf]
    if (meant := OTHER_TRAINERS.get(leaf)) in every:  # not "fp8 or fp4" for cp
        found = [meant]
    near = list(dict.fromkeys(found))[:3] or get_close_matches(path[:200], every, n=2, cutoff=0.75)
    return [candidate for candidate in near if candidate != path]


def section_fields(value: object) -> list[str]:
    """Return the names in a section: fields of a dataclass or its class, or keys of a mapping."""
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if is_dataclass(value):
        return [f.name for f in fields(value) if f.init]
    return []


def field_alias(section: object, name: str) -> str | None:
    """Return the path in a section, or in its class, for which it takes another name, from its `field_aliases`."""
    aliases: Mapping[str, str] = getattr(section, "field_aliases", {})
    return aliases.get(name)


def _sections(root: object) -> dict[str, list[str]]:
    if not is_dataclass(root):
        return {}
    cls = root if isinstance(root, type) else type(root)
    sections: dict[str, list[str]] = {}
    for field in fields(root):
        names = [] if isinstance(root, type) else section_fields(getattr(root, field.name))
        for candidate in dataclasses_of(hints(cls).get(field.name)):
            names += section_fields(candidate)
        sections[field.name] = list(dict.fromkeys(names))
    return sections
