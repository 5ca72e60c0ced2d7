"""Loading of model chunks of any parallel layout from a folder in the Hugging Face format.

Shape letters: G query groups on this rank, R queries in a group, D channels of a head, H hidden size.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.hf.errors import HuggingFaceError
from mb_models.hf.safetensors_files import TensorFolder
from mb_models.hf.tensor_names import EMBEDDING, TensorOrigin, origin_of


def load_hf_weights(
    chunks: Sequence[Any], folder: Path | str, *, pg_collection: ProcessGroupCollection | None = None
) -> None:
    """Copy the weights of a Hugging Face folder into this rank's chunks, under any layout.

    Each rank reads its own parts, parameter by parameter, so that at most one parameter is held in addition to the
    model. Rows of the embedding beyond the folder's vocabulary become 0. Not collective. A model on a single rank is
    also checked for tensors that no parameter uses.

    Args:
        chunks: this rank's model chunks.
        folder: folder with a `config.json` and safetensors.
        pg_collection: process groups with `tp`, `pp`, `ep` and `expt_tp`; None: those that the chunks were
            built with.

    Raises:
        HuggingFaceError: a tensor is missing, is unused, or has another shape than the model expects.
    """
    groups = groups_of_chunks(chunks) if pg_collection is None else pg_collection
    taken: set[str] = set()
    with TensorFolder(Path(folder)) as stored:
        for parameter, value, origin in parameter_origins(chunks, groups):
            ranks = groups.expt_tp if ".local_experts." in parameter else groups.tp
            rows = value.shape[0] if origin.tensors[0] in VOCABULARY else None
            parts = [
                _part(stored, name, origin, rank=ranks.rank(), size=ranks.size(), rows=rows)
                for name in origin.tensors
            ]
            source = fuse_parts(parts, origin, head_size=int(chunks[0].config.kv_channels))
            _copy(value, source, parameter=parameter, padded=rows is not None)
            taken.update(origin.tensors)
        left = {name for name in stored.names() - taken if not name.endswith("rotary_emb.inv_freq")}
    if chunks[0].share_embeddings_and_output_weights:
        left.discard("lm_head.weight")
    if left and groups.pp.size() == groups.ep.size() == 1:
        raise HuggingFaceError(
            f"{folder}: {', '.join(sorted(left)[:4])} ({len(left)} tensors) belong to no parameter of the model, "
            "because it is of another kind than its config.json. Build the model from that file."
        )


VOCABULARY = (EMBEDDING, "lm_head.weight")
"""Tensors with a row for each token."""


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
    found: ProcessGroupCollection = groups
    return found


def parameter_origins(
    chunks: Sequence[Any], groups: ProcessGroupCollection
) -> Iterator[tuple[str, torch.nn.Parameter, TensorOrigin]]:
    """Yield each parameter of the chunks with its name and the tensors it is made of."""
    for chunk in chunks:
        numbers = [layer.layer_number - 1 for layer in chunk.decoder.layers]
        first = (chunk.config.num_moe_experts or 0) // groups.ep.size() * groups.ep.rank()
        tied = bool(chunk.share_embeddings_and_output_weights)
        for name, value in chunk.named_parameters():
            yield (
                name,
                value,
                origin_of(
                    name,
                    layer=numbers.__getitem__,
                    expert=partial(add, first),
                    tied=tied,
                ),
            )


def _part(
    stored: TensorFolder, name: str, origin: TensorOrigin, *, rank: int, size: int, rows: int | None
) -> torch.Tensor:
    """Read this rank's part of a tensor: at most `rows` rows, or an even share if that is None."""
    if origin.split is None:
        return stored.part(name, split=None, start=0, stop=0)
    length = stored.shape(name)[origin.split]
    if rows is None and length % size:
        raise HuggingFaceError(
            f"{name}: {length} is not divisible by tensor_model_parallel_size={size}, because each rank holds an equal "
            "part. Use a smaller one."
        )
    each = length // size if rows is None else rows
    start = min(rank * each, length)
    stop = length if rank == size - 1 else min(start + each, length)
    return stored.part(name, split=origin.split, start=start, stop=stop)


def fuse_parts(parts: Sequence[torch.Tensor], origin: TensorOrigin, *, head_size: int) -> torch.Tensor:
    """Fuse query, key and value (group by group), or gate and up projection, as Megatron does."""
    if origin.form == "plain":
        return parts[0]
    if origin.form == "glu":
        return torch.cat(list(parts))
    groups = parts[1].shape[0] // head_size
    grouped = [
        part.reshape(groups, -1, *part.shape[1:]) for part in parts
    ]  # [G, R D, H], [G, D, H], [G, D, H]
    return torch.cat(grouped, dim=1).flatten(0, 1)


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
