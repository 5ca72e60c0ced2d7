"""Selection of the layers that get adapters, agreed by all ranks."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from mb_models.errors import PeftError
from mb_models.peft.adapter import rank_of
from mb_models.peft.linears import is_plain, is_supported, partition_of
from mb_models.peft.targets import CANONICAL_NAMES, MAIN, CandidateLayer, numbered, require_matches, select

if TYPE_CHECKING:
    from mb_models.peft.config import LoRA

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSelection:
    """Layers of one chunk with adapters, and the candidates."""

    chosen: Mapping[str, tuple[str, ...]]
    """Path in the chunk -> parts."""
    names: Mapping[str, str]
    """Path of every layer that can have adapters -> its name in the complete model."""
    left: frozenset[tuple[str, str]]
    """Kind and part of each candidate without adapters."""
    used: frozenset[str]
    """Patterns that select a layer."""
    leaves: frozenset[str]
    """Last parts of the names of all layers that can have adapters."""
    problem: str | None
    """Reason why a selected layer cannot have adapters; None: there is none."""


def select_layers(chunk: Any, section: LoRA) -> AdapterSelection:
    """Return the layers of a chunk that the patterns of the section select. Not collective."""
    targets, exclude = list(section.target_modules), list(section.exclude_modules)
    canonical = section.splits_fused_layers
    modules = dict(chunk.named_modules())
    numbers = _numbers(modules)
    candidates: list[CandidateLayer] = []
    unsupported: list[CandidateLayer] = []
    tied = _tied_output_layers(modules)
    for path, module in modules.items():
        if not path or path in tied:
            continue
        parts = _parts(path.rsplit(".", 1)[-1], module, canonical=canonical)
        candidate = CandidateLayer(path=path, name=numbered(path, numbers), parts=parts)
        (candidates if is_supported(module) else unsupported).append(candidate)
    chosen, used = select(candidates, targets=targets, exclude=exclude)
    wrong, named = select(unsupported, targets=targets, exclude=exclude) if targets else ({}, set())
    problem = None
    for path in (*chosen, *wrong):
        try:
            partition_of(path, modules[path])
            rank_of(path, modules[path], section)
            require_complete_groups(path, modules[path], canonical=canonical)
        except PeftError as error:
            problem = str(error)
            break
    return AdapterSelection(
        chosen=chosen,
        names={candidate.path: candidate.name for candidate in candidates},
        left=frozenset(
            (kind_of(candidate.name), part)
            for candidate in candidates
            for part in candidate.parts
            if part not in chosen.get(candidate.path, ())
        ),
        used=frozenset(used | named),
        leaves=frozenset(
            leaf
            for candidate in candidates
            for leaf in (candidate.path.rsplit(".", 1)[-1], *candidate.parts.values())
        ),
        problem=problem,
    )


def require_complete_groups(path: str, module: Any, *, canonical: bool) -> None:
    """Reject canonical LoRA of a fused layer whose rows on a rank are no complete query groups.

    Raises:
        PeftError: there are more tensor-parallel ranks than query groups.
    """
    if not canonical or is_plain(module) or path.rsplit(".", 1)[-1] != "linear_qkv":
        return
    groups, ranks = module.config.num_query_groups, partition_of(path, module).group.size()
    if groups < ranks:
        raise PeftError(
            f"peft: canonical LoRA of {path} has no separate keys and values on a rank (model.num_query_groups="
            f"{groups}, model.tensor_model_parallel_size={ranks}), because ranks share query groups. Use LoRA, or "
            f"at most {groups} tensor-parallel ranks."
        )


def _tied_output_layers(modules: Mapping[str, Any]) -> set[str]:
    """Return the output layers that compute with the weight of the embedding, on the last stage with a copy of it."""
    return {
        f"{path}.output_layer".removeprefix(".")
        for path, module in modules.items()
        if getattr(module, "share_embeddings_and_output_weights", False)
    }


def kind_of(name: str) -> str:
    """Return the name of a layer without the numbers of transformer layer and expert."""
    return re.sub(r"\b(layers|local_experts)\.\d+\.", r"\1.", name)


def _numbers(modules: Mapping[str, Any]) -> dict[str, int]:
    """Return the path of each transformer layer and expert -> its number in the complete model."""
    expert_numbers = {
        path: module.layer_number - 1
        for path, module in modules.items()
        if path.rpartition(".")[0].endswith("layers")
        and isinstance(getattr(module, "layer_number", None), int)
    }
    for path, module in modules.items():
        indices = getattr(module, "local_expert_indices", None)
        if path and isinstance(indices, list):
            expert_numbers |= {
                f"{path}.experts.local_experts.{local_index}": number
                for local_index, number in enumerate(indices)
            }
    return expert_numbers


def _parts(leaf: str, module: Any, *, canonical: bool) -> Mapping[str, str]:
    """Return part -> name of the part, for the last part of a layer's name."""
    if not canonical or is_plain(module):
        return {MAIN: leaf}
    if leaf == "linear_fc1" and is_supported(module) and not module.config.gated_linear_unit:
        return {MAIN: CANONICAL_NAMES[leaf]["up"]}
    return CANONICAL_NAMES.get(leaf, {MAIN: leaf})


def validate_on_all_ranks(
    local_selections: Sequence[AdapterSelection], section: LoRA
) -> set[tuple[str, str]]:
    """Raise on all ranks the error of any rank; return kinds and parts that only some layers adapt.

    Collective over the default process group.

    Raises:
        PeftError: as `install`.
    """
    everywhere = _gather_selections(list(local_selections))
    problems = [selection.problem for selection in everywhere if selection.problem is not None]
    if problems:
        raise PeftError(problems[0])
    targets = list(section.target_modules)
    missing = require_matches(
        targets or list(section.exclude_modules),
        used=set().union(*(selection.used for selection in everywhere)),
        leaves=set().union(*(selection.leaves for selection in everywhere)),
        field="peft.target_modules" if targets else "peft.exclude_modules",
        may_lack=targets == type(section)().target_modules,
    )
    if missing and (not dist.is_initialized() or dist.get_rank() == 0):
        logger.warning(
            "peft.target_modules: %s of the default list match no layer of this model. The others are adapted.",
            ", ".join(missing),
        )
    adapted_kinds = {
        (kind_of(selection.names[path]), part)
        for selection in everywhere
        for path, parts in selection.chosen.items()
        for part in parts
    }
    return adapted_kinds & set().union(*(selection.left for selection in everywhere))


def _gather_selections(local_selections: list[AdapterSelection]) -> list[AdapterSelection]:
    if not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return local_selections
    gathered: list[list[AdapterSelection] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, local_selections)
    return [selection for part in gathered for selection in part or ()]
