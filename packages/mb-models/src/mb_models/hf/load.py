"""Loading of model chunks of any parallel layout from a folder in the Hugging Face format.

Shape letters: G query groups on this rank, R queries in a group, D channels of a head, H hidden size.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.errors import HuggingFaceError
from mb_models.hf.config_json import read_config
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import HuggingFaceFamily, TensorOrigin
from mb_models.hf.gated_delta_weights import convolution_rows, fuse_gated_delta, gates_after_queries
from mb_models.hf.safetensors_files import TensorFolder
from mb_models.hf.stacked_experts import read_expert, stacked_tensors
from mb_models.hf.weight_tables import origin_of, output_tensor
from mb_models.hybrid.config import mamba_heads

logger = logging.getLogger(__name__)

BUFFERS = ("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
"""Ends of the names of constants (frequencies and causal masks) that folders of earlier versions hold."""


def load_hf_weights(
    chunks: Sequence[Any], folder: Path | str, *, pg_collection: ProcessGroupCollection | None = None
) -> None:
    """Copy the weights of a Hugging Face folder into this rank's chunks, under any layout.

    Each rank reads its own parts, parameter by parameter, so that at most one parameter is held in addition to the
    model. Rows of the embedding beyond the folder's vocabulary become 0. Not collective. A model on a single rank is
    also checked for tensors that no parameter uses. Values that the type of a parameter cannot hold are rounded, and a
    warning is logged; the first rank logs it for its own parameters, and what transformers computes differently by
    little.

    Args:
        chunks: this rank's model chunks.
        folder: folder with a `config.json` and safetensors.
        pg_collection: process groups with `tp`, `pp`, `ep` and `expt_tp`; None: those that the chunks were
            built with.

    Raises:
        HuggingFaceError: a tensor is missing, is unused, or has another shape than the model expects; or the output
            layer is tied to the embedding, and the folder holds different values for the two.
    """
    groups = groups_of_chunks(chunks) if pg_collection is None else pg_collection
    content = read_config(Path(folder))
    family = FAMILIES[content["model_type"]]
    loaded_names: set[str] = set()
    rounded: list[str] = []
    tied = bool(chunks[0].share_embeddings_and_output_weights)
    tied_output = output_tensor(family) if tied else ""
    with TensorFolder(Path(folder)) as stored:
        for parameter, value, origin in parameter_origins(chunks, groups, family):
            ranks = groups.expt_tp if ".experts." in parameter else groups.tp
            rank, size = ranks.rank(), ranks.size()
            if origin.stacked:
                parts = read_expert(stored, origin, rank=rank, size=size, dtype=value.dtype)
                loaded_names.update(stacked_tensors(stored, origin))
                source = fuse_parts(parts, origin, config=chunks[0].config)
            else:
                source = _read_fused(
                    stored, origin, value.shape, config=chunks[0].config, rank=rank, size=size
                )
            if origin.offset:
                source = source.float() - origin.offset
            if source.dtype != value.dtype and not torch.equal(
                source.to(value.dtype).to(source.dtype), source
            ):
                rounded.append(parameter)
            _copy(value, source, parameter=parameter, padded=origin.vocabulary)
            loaded_names.update(origin.tensors)
            if tied_output in stored.names() and origin.vocabulary:
                output = replace(origin, tensors=(tied_output,))
                (rows,) = read_parts(
                    stored, output, value.shape, config=chunks[0].config, rank=rank, size=size
                )
                _require_tied(rows, source, name=tied_output, folder=folder)
                loaded_names.add(tied_output)
        first_rank = groups.tp.rank() == groups.pp.rank() == groups.ep.rank() == 0
        for notice in family.notices(content) if first_rank else ():
            logger.warning("%s: %s", folder, notice)
        if rounded and first_rank:
            logger.warning(
                "%s: %d parameters (%s, ...) are rounded to the floating-point type of the model, which has fewer "
                "digits than the folder",
                folder,
                len(rounded),
                rounded[0],
            )
        if stored.left_out and first_rank:
            logger.warning(
                "%s: %d tensors of an image encoder or of further tokens are not loaded",
                folder,
                stored.left_out,
            )
        unused = {name for name in stored.names() - loaded_names if not name.endswith(BUFFERS)}
    if unused and groups.pp.size() == groups.ep.size() == 1:
        raise HuggingFaceError(
            f"{folder}: {', '.join(sorted(unused)[:4])} ({len(unused)} tensors) belong to no parameter of the model, "
            "because it is of another kind than its config.json. Build the model from that file."
        )


def groups_of_chunks(chunks: Sequence[Any]) -> ProcessGroupCollection:
    """Return the process groups that the chunks were built with.

    Raises:
        HuggingFaceError: the chunks do not keep them.
    """
    groups = getattr(chunks[0], "pg_collection", None)  # of Megatron's language modules
    if groups is None:
        raise HuggingFaceError(
            f"pg_collection: not set, and {type(chunks[0]).__name__} keeps none, because each rank finds its part of "
            "the weights by its rank in these groups. Pass pg_collection."
        )
    collection: ProcessGroupCollection = groups
    return collection


def parameter_origins(
    chunks: Sequence[Any], groups: ProcessGroupCollection, family: HuggingFaceFamily
) -> Iterator[tuple[str, torch.Tensor, TensorOrigin]]:
    """Yield each weight of the chunks with its name and the tensors it is made of."""
    for chunk in chunks:
        numbers = [family.layer_of(layer.layer_number - 1) for layer in chunk.decoder.layers]
        first = (chunk.config.num_moe_experts or 0) // groups.ep.size() * groups.ep.rank()
        tied = bool(chunk.share_embeddings_and_output_weights)
        for name, value in named_weights(chunk):
            origin = origin_of(
                name, family=family, layer=numbers.__getitem__, expert=partial(add, first), tied=tied
            )
            yield name, value, origin


def named_weights(chunk: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a chunk, and the biases of its routers, which Megatron keeps in buffers."""
    yield from chunk.named_parameters()
    yield from ((name, value) for name, value in chunk.named_buffers() if name.endswith(".expert_bias"))


def _read_fused(
    stored: TensorFolder, origin: TensorOrigin, shape: Sequence[int], *, config: Any, rank: int, size: int
) -> torch.Tensor:
    """Read this rank's part of a parameter; the arguments and errors are those of `read_parts`."""
    if origin.form in ("qkv", "gated_qkv") and config.num_query_groups < size:
        # ranks that share a query group hold consecutive rows of the fusion of all groups
        every_part = read_parts(stored, origin, shape, config=config, rank=0, size=1)
        return fuse_parts(every_part, origin, config=config).chunk(size)[rank]
    return fuse_parts(
        read_parts(stored, origin, shape, config=config, rank=rank, size=size), origin, config=config
    )


def read_parts(
    stored: TensorFolder, origin: TensorOrigin, shape: Sequence[int], *, config: Any, rank: int, size: int
) -> list[torch.Tensor]:
    """Read this rank's parts of a parameter, in the order of the fusion.

    Args:
        stored: the folder.
        origin: tensors of the parameter.
        shape: shape of the parameter on this rank.
        config: Megatron's configuration of the model.
        rank: rank in the tensor-parallel group.
        size: ranks of that group.

    Raises:
        HuggingFaceError: a tensor is missing, or cannot be shared evenly.
    """
    if not origin.packed:
        return [_part(stored, name, origin, shape, rank=rank, size=size) for name in origin.tensors]
    (name,) = origin.tensors
    parts, start = [], 0
    for length in packed_rows(origin, config, rows=stored.shape(name)[0]):
        share = _share(length, size, name)
        parts.append(stored.part(name, split=0, start=start + rank * share, stop=start + (rank + 1) * share))
        start += length
    return parts


def packed_rows(origin: TensorOrigin, config: Any, *, rows: int) -> list[int]:
    """Return the numbers of rows of the parts of a packed tensor."""
    if origin.form == "glu":
        return [rows // 2, rows - rows // 2]
    if origin.form == "gated_delta_convolution":
        return convolution_rows(config)
    if origin.form in ("mamba", "convolution"):
        heads = mamba_heads(config.hidden_size, config.mamba_num_heads, config.mamba_head_dim)
        inner, state = heads * config.mamba_head_dim, config.mamba_num_groups * config.mamba_state_dim
        convolved = [inner, state, state]
        return convolved if origin.form == "convolution" else [inner, *convolved, heads]
    keys = config.num_query_groups * config.kv_channels
    return [config.num_attention_heads * config.kv_channels, keys, keys]


def _share(length: int, size: int, name: str) -> int:
    if length % size:
        raise HuggingFaceError(
            f"{name}: {length} is not divisible by tensor_model_parallel_size={size}, because each rank holds an equal "
            "part. Use a smaller one."
        )
    return length // size


def _part(
    stored: TensorFolder, name: str, origin: TensorOrigin, shape: Sequence[int], *, rank: int, size: int
) -> torch.Tensor:
    """Read this rank's part of a tensor: an even share, at most the rows of `shape` of a vocabulary, or all of it."""
    split = origin.split
    # layers of Transformer Engine replicate down projections that local layers share
    if split is None or (
        origin.form == "plain" and not origin.vocabulary and stored.shape(name)[split] == shape[split]
    ):
        return stored.part(name, split=None, start=0, stop=0)
    length = stored.shape(name)[split]
    share = shape[0] if origin.vocabulary else _share(length, size, name)
    start = min(rank * share, length)
    stop = length if rank == size - 1 else min(start + share, length)
    return stored.part(name, split=split, start=start, stop=stop)


def fuse_parts(parts: Sequence[torch.Tensor], origin: TensorOrigin, *, config: Any) -> torch.Tensor:
    """Fuse query, key and value (group by group), gate and up projection, or a gated-delta layer, as Megatron does."""
    if origin.form == "plain":
        return parts[0]
    if origin.form == "gated_delta":
        return fuse_gated_delta(parts, config)
    if origin.form not in ("qkv", "gated_qkv"):
        return torch.cat(list(parts))
    size = int(config.kv_channels)
    groups = parts[1].shape[0] // size
    if origin.form == "gated_qkv":
        parts = [gates_after_queries(parts[0], groups=groups, head_size=size), *parts[1:]]
    # [G, R D, H], [G, D, H], [G, D, H]
    grouped = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _require_tied(output: torch.Tensor, embedding: torch.Tensor, *, name: str, folder: Path | str) -> None:
    if not torch.equal(output, embedding):
        raise HuggingFaceError(
            f"{folder}: {name} differs from the embedding, and config.json has tie_word_embeddings=true, because the "
            "two were trained apart or belong to different models. Set tie_word_embeddings to false in config.json to "
            "load both, or remove the tensor."
        )


@torch.no_grad()
def _copy(value: torch.Tensor, source: torch.Tensor, *, parameter: str, padded: bool) -> None:
    rows = source.shape[0]
    fits = source.shape == value.shape or (
        padded and source.shape[1:] == value.shape[1:] and rows <= value.shape[0]
    )
    if not fits:
        raise HuggingFaceError(
            f"{parameter}: has shape {list(value.shape)}, and the folder's tensors {list(source.shape)}, because the "
            "model section is not that of its config.json."
        )
    value[:rows].copy_(source)
    value[rows:].zero_()
