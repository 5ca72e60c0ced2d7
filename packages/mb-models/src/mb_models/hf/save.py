"""Export of a model on a single rank to a folder in the Hugging Face format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.hf.carried import from_template
from mb_models.hf.config_json import config_of
from mb_models.hf.errors import HuggingFaceError
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import Section, TensorOrigin
from mb_models.hf.load import groups_of_chunks, parameter_origins
from mb_models.hf.safetensors_files import ShardWriter
from mb_models.hf.stacked_experts import ExpertStacks

SHARD_BYTES = 2 * 2**30
"""Maximum size of a file, unless one tensor is larger."""


def save_hf_model(
    chunk: Any,
    folder: Path | str,
    *,
    config: Section,
    pg_collection: ProcessGroupCollection | None = None,
    shard_bytes: int = SHARD_BYTES,
    model_type: str | None = None,
    template: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
) -> None:
    """Write config.json and the weights of a complete model; the index or the single file is written last.

    Holds one file's tensors in addition to the model. Not collective.

    Args:
        chunk: the model, built on one rank.
        folder: output folder, which is created and must be empty.
        config: the section that the chunk was built from.
        pg_collection: groups of one rank each; None: those that the model was built with.
        shard_bytes: maximum size of a file.
        model_type: family of `mb_models.hf.families`; None: the first that computes the same as the section.
        template: a config.json from which fields without effect on the logits are taken, such as ids of special
            tokens; None: none are.
        vocab_size: number of tokens, if the embedding has more rows for padding, which are not written; None: all rows.

    Raises:
        HuggingFaceError: no model in that format computes the same, or the model is distributed over several ranks.
        FileExistsError: the folder holds files.
    """
    groups = groups_of_chunks([chunk]) if pg_collection is None else pg_collection
    sizes = [group.size() for group in (groups.tp, groups.pp, groups.ep)]
    if sizes != [1, 1, 1]:
        raise HuggingFaceError(
            f"save_hf_model: the model is distributed over {sizes} ranks (tensor, pipeline, expert), because it was "
            "built so. Load its checkpoint into a model on one rank."
        )
    target = Path(folder)
    dtype = str(next(iter(chunk.parameters())).dtype).removeprefix("torch.")
    rows = chunk.embedding.word_embeddings.weight.shape[0]
    tokens = rows if vocab_size is None else min(vocab_size, rows)
    content = config_of(config, vocab_size=tokens, dtype=dtype, model_type=model_type)
    content = from_template(content, template or {})
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(
            f"{target}: holds files, because they would be mixed with the new ones. Use another folder."
        )
    (target / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    writer = ShardWriter(target, shard_bytes=shard_bytes)
    stacks = ExpertStacks(count=config.num_moe_experts or 0)
    for _, value, origin in parameter_origins([chunk], groups, FAMILIES[content["model_type"]]):
        kept = value.detach()[:tokens] if origin.vocabulary else value.detach()
        if origin.stacked:
            pairs = list(stacks.add(origin, kept))
        else:
            pairs = list(zip(origin.tensors, stored_tensors(kept, config, origin), strict=True))
        for name, part in pairs:
            writer.add(name, part)
    writer.finish()


def stored_tensors(parameter: torch.Tensor, config: Section, origin: TensorOrigin) -> list[torch.Tensor]:
    """Return the tensors of a folder that a parameter of a complete model is written to."""
    parts = split_parts(parameter, config, origin)
    return [torch.cat(parts)] if origin.packed else parts


def split_parts(parameter: torch.Tensor, config: Section, origin: TensorOrigin) -> list[torch.Tensor]:
    """Split a parameter of a complete model into tensors, in the order of `origin.tensors`."""
    if origin.form not in ("qkv", "glu"):
        return [parameter]  # parts of other forms are in the same order in both formats
    if origin.form == "glu":
        return list(parameter.chunk(2))
    size = config.kv_channels or config.hidden_size // config.num_attention_heads
    groups = config.num_query_groups or config.num_attention_heads
    queries = config.num_attention_heads // groups
    grouped = parameter.reshape(groups, -1, *parameter.shape[1:])
    parts = torch.split(grouped, [queries * size, size, size], dim=1)
    return [part.flatten(0, 1) for part in parts]
