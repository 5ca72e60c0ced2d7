"""Export of a checkpoint in the Hugging Face format: load, merge adapters, write. Imports torch and megatron."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.hf.carried import GENERATION, read_template
from mb_models.hf.config_json import family_of_section, padded_rows, same_family
from mb_models.hf.conversion import load_by_kind
from mb_models.hf.export_part import SHARD_BYTES, WHOLE, ExportPart
from mb_models.hf.export_plan import plan_export
from mb_models.hf.family import Section
from mb_models.hf.save import open_folder, write_part
from mb_models.peft.config import PEFT
from mb_models.peft.hugging_face import save_adapters
from mb_models.peft.loading import Load, load_adapted, load_merged


def export_model(  # noqa: PLR0913 - options of an export, each by name
    chunk: Any,
    folder: Path,
    *,
    section: Section,
    load: Load,
    pg_collection: ProcessGroupCollection,
    peft: PEFT | None = None,
    adapters_only: bool = False,
    model_type: str | None = None,
    carried: Path | None = None,
    tokenizer_vocab_size: int = 0,
    padded_vocabulary: bool = False,
    base: str = "",
    part: ExportPart = WHOLE,
    shard_bytes: int = SHARD_BYTES,
    copy_files: Callable[[Path], object] = lambda _folder: None,
) -> None:
    """Load a checkpoint into a model on one rank, and write it as a transformers folder. Not collective.

    Adapters are merged. Padding rows of the vocabulary are not written, if the section or `carried` holds the number of
    tokens, or `padded_vocabulary` is set.

    Args:
        chunk: the complete model without adapters, from `mb_models.hf.conversion.memory_mapped_model`.
        folder: output folder.
        section: section of the model.
        load: loads the selected parameters, and with `peft` those under the adapters as well.
        pg_collection: groups of one rank each.
        peft: section of the adapters; None: the checkpoint has none.
        adapters_only: write only the adapters, in the format of peft.
        model_type: family of `mb_models.hf.families`; None: that of `carried`, or the first that computes the same as
            the section.
        carried: Hugging Face folder, or checkpoint with the files of `mb_models.hf.carried`, which complete the
            output; None: there are none.
        tokenizer_vocab_size: number of tokens of the tokenizer; 0: not known.
        padded_vocabulary: the rows beyond those of the tokenizer are padding, because the size of the vocabulary was
            derived from the tokenizer.
        base: path of the model under the adapters, for adapter_config.json.
        part: share of this process: it loads and writes only that; the folder is complete after the last part.
        shard_bytes: maximum size of a file of weights.
        copy_files: writes other small files, such as the tokenizer, into the folder.

    Raises:
        HuggingFaceError: no supported transformers model computes the same result.
        PeftError: adapters are requested of a checkpoint that has none, or have a user-defined class.
        FileExistsError: the folder holds files of another export.
    """
    template = {} if carried is None else read_template(carried)
    if model_type is None:
        model_type = same_family(section, template.get("model_type"))
    vocab_size = _rows_without_padding(
        section.vocab_size,
        named=section.unpadded_vocab_size or template.get("vocab_size"),
        tokenizer_vocab_size=tokenizer_vocab_size,
        padded=padded_vocabulary or section.unpadded_vocab_size is not None,
    )
    if adapters_only:
        # Rejects unsupported features before anything is loaded.
        family_of_section(section, model_type=model_type)
        adapters = load_adapted(peft, [chunk], load)
        save_adapters(
            chunk,
            folder,
            section=adapters,
            config=section,
            pg_collection=pg_collection,
            model_type=model_type,
            base=base,
            vocab_size=vocab_size,
        )
        copy_files(folder)
        return
    plan = plan_export(
        chunk,
        config=section,
        groups=pg_collection,
        shard_bytes=shard_bytes,
        model_type=model_type,
        template=template,
        vocab_size=vocab_size,
    )
    if not plan.files_of(part):
        return  # there are more processes than files
    open_folder(folder, plan, part=part, source=str(carried))
    if part.index == 0:
        copy_files(folder)
        if carried is not None and (carried / GENERATION).is_file():
            shutil.copyfile(carried / GENERATION, folder / GENERATION)
    is_needed = plan.parameters_of(part).__contains__
    if peft is None:
        load_by_kind(chunk, load, is_needed=is_needed)
    else:
        load_merged(peft, [chunk], load, is_needed=None if part.count == 1 else is_needed)
    write_part(chunk, folder, plan, config=section, groups=pg_collection, part=part)


def _rows_without_padding(
    rows: int | None, *, named: object, tokenizer_vocab_size: int, padded: bool
) -> int | None:
    """Return the rows of the vocabulary that are written; None: all rows.

    `named` is the number of tokens of the model that the weights or the section come from; it counts where the rows
    are these tokens and padding.
    """
    if isinstance(named, int) and (padded or rows in {named, padded_rows(named)}):
        return max(named, tokenizer_vocab_size) or None
    return (tokenizer_vocab_size if padded else 0) or None
