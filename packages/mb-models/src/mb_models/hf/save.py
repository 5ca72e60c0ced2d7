"""Export of a model on a single rank to a folder in the Hugging Face format, by one process or by several.

1. Every process plans all files from the shapes (`mb_models.hf.export_plan`), and writes config.json.
2. It writes its files. A file has its final name when it is complete and on the disk.
3. The process that finds all files writes the index. Without an index no program reads a folder of several files, so
   that a folder that is not finished never looks complete.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.errors import HuggingFaceError, OutputExistsError
from mb_models.hf.export_part import SHARD_BYTES, WHOLE, ExportPart
from mb_models.hf.export_plan import SINGLE, ExportPlan, exported_tensors, plan_export
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import Section
from mb_models.hf.load import groups_of_chunks, parameter_origins
from mb_models.hf.safetensors_files import INDEX, write_tensors
from mb_schema.files import write_atomically

SHARED = ".export-parts.json"
"""File of a folder that several processes write, until it is complete."""


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
    require_one_rank(groups)
    plan = plan_export(
        chunk,
        config=config,
        groups=groups,
        shard_bytes=shard_bytes,
        model_type=model_type,
        template=template,
        vocab_size=vocab_size,
    )
    open_folder(Path(folder), plan)
    write_part(chunk, Path(folder), plan, config=config, groups=groups)


def hf_weights(
    chunk: Any, *, config: Section, model_type: str, vocab_size: int | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and value of each tensor that `save_hf_model` writes, with its arguments. Not collective.

    Raises:
        HuggingFaceError: the model is distributed over several ranks.
    """
    groups = groups_of_chunks([chunk])
    require_one_rank(groups)
    weights = parameter_origins([chunk], groups, FAMILIES[model_type])
    rows = chunk.embedding.word_embeddings.weight.shape[0]
    yield from exported_tensors(weights, config=config, tokens=rows if vocab_size is None else vocab_size)


def require_one_rank(groups: ProcessGroupCollection) -> None:
    """Reject a model that is distributed over ranks.

    Raises:
        HuggingFaceError: it is.
    """
    sizes = [group.size() for group in (groups.tp, groups.pp, groups.ep)]
    if sizes != [1, 1, 1]:
        raise HuggingFaceError(
            f"save_hf_model: the model is distributed over {sizes} ranks (tensor, pipeline, expert), because it was "
            "built so. Load its checkpoint into a model on one rank."
        )


def open_folder(folder: Path, plan: ExportPlan, *, part: ExportPart = WHOLE, source: str = "") -> None:
    """Create the folder and write config.json.

    Args:
        folder: output folder.
        plan: its content.
        part: share of this process; several processes write into one folder.
        source: checkpoint that the parts are read from, which must be the same.

    Raises:
        FileExistsError: the folder holds files of another model, or this part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if part.count == 1:
        if any(folder.iterdir()):
            raise FileExistsError(
                f"{folder}: holds files, because they would be mixed with the new ones. Use another folder."
            )
    else:
        _join_parts(folder, plan, part=part, source=source)
    write_atomically(folder / "config.json", json.dumps(plan.config, indent=2) + "\n", durable=True)


def _join_parts(folder: Path, plan: ExportPlan, *, part: ExportPart, source: str) -> None:
    """Check that the files of the folder are other parts of the same export."""
    shared, content = folder / SHARED, json.dumps({"source": source, "parts": part.count})
    existing = [file.name for file in folder.iterdir() if not file.name.startswith(".")]
    foreign = [name for name in plan.files_of(part) if name in existing]
    if shared.is_file():
        foreign += [] if shared.read_text(encoding="utf-8") == content else [SHARED]
    else:
        foreign += existing[:1]
    if foreign:
        raise OutputExistsError(
            f"--out: {folder} holds {foreign[0]} of another export, which would be mixed with the new files. Name "
            "another, or remove it and write all parts again."
        )
    write_atomically(shared, content, durable=True)


def write_part(
    chunk: Any,
    folder: Path,
    plan: ExportPlan,
    *,
    config: Section,
    groups: ProcessGroupCollection,
    part: ExportPart = WHOLE,
) -> None:
    """Write the files of a part, and the index if all files are there. Holds one file's tensors. Not collective.

    Args:
        chunk: the model, of which the parameters of the part are loaded.
        folder: folder of `open_folder`.
        plan: its content.
        config: section of the model.
        groups: groups of one rank each.
        part: share of this process.
    """
    files, parameters = plan.files_of(part), plan.parameters_of(part)
    file_of = {tensor: name for name, tensors in files.items() for tensor in tensors}
    held: dict[str, dict[str, torch.Tensor]] = {}
    weights = (
        weight
        for weight in parameter_origins([chunk], groups, FAMILIES[plan.config["model_type"]])
        if weight[0] in parameters
    )
    for tensor, value in exported_tensors(weights, config=config, tokens=plan.tokens):
        if tensor in file_of:
            name = file_of[tensor]
            tensors = held.setdefault(name, {})
            tensors[tensor] = value.cpu().contiguous().clone()
            if len(tensors) == len(files[name]):
                write_tensors(held.pop(name), folder / name)
    _complete(folder, plan)


def _complete(folder: Path, plan: ExportPlan) -> None:
    """Write the index if all files are there. Several processes may do so at the same time."""
    if not all((folder / name).exists() for name in plan.files):
        return
    if list(plan.files) != [SINGLE]:
        where = {tensor: name for name, tensors in plan.files.items() for tensor in tensors}
        index = {"metadata": {"total_size": plan.total_bytes}, "weight_map": dict(sorted(where.items()))}
        write_atomically(folder / INDEX, json.dumps(index, indent=2) + "\n", durable=True)
    (folder / SHARED).unlink(missing_ok=True)
