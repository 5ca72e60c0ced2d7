"""Files of an export, planned from shapes before any weight is loaded, so that several processes can share them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.hf.carried import from_template
from mb_models.hf.config_json import config_of
from mb_models.hf.export_part import SHARD_BYTES, ExportPart
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import Section, TensorOrigin
from mb_models.hf.gated_delta_weights import gates_next_to_queries, split_gated_delta
from mb_models.hf.load import parameter_origins
from mb_models.hf.stacked_experts import ExpertStacks

SINGLE = "model.safetensors"
"""Name of the file of weights if there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Content of an exported folder."""

    config: Mapping[str, Any]
    """Content of config.json."""
    files: Mapping[str, tuple[str, ...]]
    """Name of each file of weights -> its tensors."""
    sources: Mapping[str, tuple[str, ...]]
    """Name of each tensor -> the parameters that it is made of."""
    tokens: int
    """Entries of the exported vocabulary: rows of the embedding, without Megatron's padding."""
    total_bytes: int
    """Bytes of all tensors."""

    def files_of(self, part: ExportPart) -> dict[str, tuple[str, ...]]:
        """Return the files of a part, with their tensors."""
        names = list(self.files)[part.index :: part.count]
        return {name: self.files[name] for name in names}

    def parameters_of(self, part: ExportPart) -> frozenset[str]:
        """Return the parameters that the files of a part are made of."""
        tensors = [tensor for names in self.files_of(part).values() for tensor in names]
        return frozenset(parameter for tensor in tensors for parameter in self.sources[tensor])


def plan_export(
    chunk: Any,
    *,
    config: Section,
    groups: ProcessGroupCollection,
    shard_bytes: int = SHARD_BYTES,
    model_type: str | None = None,
    template: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
) -> ExportPlan:
    """Return the files that a complete model is exported to; reads only the shapes of its parameters.

    `chunk` is the complete model, on one rank. The other arguments and the errors are those of
    `mb_models.hf.save.save_hf_model`.
    """
    dtype = str(next(iter(chunk.parameters())).dtype).removeprefix("torch.")
    rows = chunk.embedding.word_embeddings.weight.shape[0]
    tokens = rows if vocab_size is None else min(vocab_size, rows)
    content = config_of(config, vocab_size=tokens, dtype=dtype, model_type=model_type)
    weights = [
        (name, value.detach().to("meta"), origin)
        for name, value, origin in parameter_origins([chunk], groups, FAMILIES[content["model_type"]])
    ]
    sources: dict[str, list[str]] = {}
    for name, _, origin in weights:
        for tensor in origin.tensors:
            sources.setdefault(tensor, []).append(name)
    sizes = {
        name: tensor.numel() * tensor.element_size()
        for name, tensor in exported_tensors(weights, config=config, tokens=tokens)
    }
    return ExportPlan(
        config=from_template(content, template or {}, config=config),
        files=_named_files(_shards(sizes, limit=shard_bytes)),
        sources={tensor: tuple(names) for tensor, names in sources.items()},
        tokens=tokens,
        total_bytes=sum(sizes.values()),
    )


def _shards(sizes: Mapping[str, int], *, limit: int) -> list[list[str]]:
    """Divide tensors, in their order, into files of at most `limit` bytes; a larger tensor has a separate file."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _named_files(shards: list[list[str]]) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each file under the names that transformers gives them."""
    count = len(shards)
    numbered = (f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))
    names = [SINGLE] if count == 1 else numbered
    return {name: tuple(tensors) for name, tensors in zip(names, shards, strict=True)}


def exported_tensors(
    weights: Iterable[tuple[str, torch.Tensor, TensorOrigin]], *, config: Section, tokens: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and value of each exported tensor, made of (name, value, origin) of a complete model's parameters."""
    stacks = ExpertStacks(count=config.num_moe_experts or 0)
    for _, value, origin in weights:
        exported = value.detach()[:tokens] if origin.vocabulary else value.detach()
        if origin.stacked:
            yield from stacks.add(origin, exported)
        else:
            yield from zip(origin.tensors, stored_tensors(exported, config, origin), strict=True)


def stored_tensors(parameter: torch.Tensor, config: Section, origin: TensorOrigin) -> list[torch.Tensor]:
    """Return the exported tensors that a parameter of a complete model is written to, in the order of its names."""
    parts = split_parts(parameter + origin.offset if origin.offset else parameter, config, origin)
    return [torch.cat(parts)] if origin.packed else parts


def split_parts(parameter: torch.Tensor, config: Section, origin: TensorOrigin) -> list[torch.Tensor]:
    """Split a parameter of a complete model into tensors, in the order of `origin.tensors`.

    Megatron keeps the queries (with "gated_qkv" also their gates), key and value of each group together; transformers
    has one tensor for all queries, one for all keys and one for all values.
    """
    if origin.form == "gated_delta":
        return split_gated_delta(parameter, config)
    if origin.form not in ("qkv", "gated_qkv", "glu"):
        return [parameter]  # parts of other forms are in the same order in both formats
    if origin.form == "glu":
        return list(parameter.chunk(2))
    size = config.kv_channels or config.hidden_size // config.num_attention_heads
    groups = config.num_query_groups or config.num_attention_heads
    gated = origin.form == "gated_qkv"
    queries = config.num_attention_heads // groups * (2 if gated else 1)
    grouped = parameter.reshape(groups, -1, *parameter.shape[1:])
    parts = torch.split(grouped, [queries * size, size, size], dim=1)
    first, *remaining = [part.flatten(0, 1) for part in parts]
    if gated:
        first = gates_next_to_queries(first, groups=groups, head_size=size)
    return [first, *remaining]
