"""Conversion of checkpoints from and to Hugging Face folders, in one process. Imports torch and megatron."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mb_checkpoint import save_model_weights
from mb_data.trainer_api import copy_tokenizer_files, saved_tokenizer_file
from mb_host.trainer_api import HOST_LAYERS
from mb_launch import World
from mb_loop import TrainState
from mb_models import family_of
from mb_models.trainer_api import (
    WHOLE,
    ExportPart,
    carry_files,
    export_model,
    load_hf_weights,
    memory_mapped_model,
    read_config,
    require_adapters,
    require_convertible,
    section_of_folder,
)
from mb_trainer.recipes.imported import imported_model
from mb_trainer.run.model import model_groups
from mb_trainer.run.saved_run import SavedRun
from mb_trainer.run.state import GlobalState

CPU = torch.device("cpu")


def import_folder(folder: Path, out: Path) -> int:
    """Write `out/checkpoints` and `out/run_config.yaml` from a folder of Llama, Qwen or Mixtral.

    Return the number of parameters. The checkpoint can be loaded under any parallelism. run_config.yaml is a
    complete configuration that starts from it.

    Raises:
        mb_models.errors.HuggingFaceError: the folder is incomplete, or Megatron would compute a different result.
    """
    section = section_of_folder(folder)
    out.mkdir(parents=True, exist_ok=True)
    layers = HOST_LAYERS[family_of(section).name]
    copy_tokenizer_files(folder, out)
    config = imported_model(section, folder=out)
    with (
        model_groups(World(), config, device=CPU) as groups,
        memory_mapped_model(section, groups=groups, layer_spec=layers, folder=out) as chunk,
    ):
        load_hf_weights([chunk], folder, pg_collection=groups)
        save_model_weights(
            out / "checkpoints",
            [chunk],
            state=GlobalState(cfg=config, train_state=TrainState()),
            pg_collection=groups,
            write_assets=partial(copy_assets, folder),
        )
        parameters: int = sum(parameter.numel() for parameter in chunk.parameters())
    # an explicit null would count as set by the user
    config.to_yaml(out / "run_config.yaml", defaults=False)
    return parameters


def copy_assets(source: Path, target: Path) -> None:
    """Copy the tokenizer and the other small files of a Hugging Face folder into a checkpoint."""
    copy_tokenizer_files(source, target)
    carry_files([source], target)


def export_run(
    run: Path,
    out: Path,
    *,
    log: Callable[[str], object],
    source: Path | None = None,
    adapters: bool = False,
    merge: bool = False,
    part: ExportPart = WHOLE,
    **options: Any,
) -> int:
    """Write the newest intact checkpoint of a run as a transformers folder; return its step.

    `log` receives a message for each damaged checkpoint that was skipped. The first part verifies the checkpoint.

    Adapters are merged; with `adapters`, only the adapters are written, in the format of peft; `merge` requires
    adapters. The tokenizer is copied. `source` is a Hugging Face folder of the same architecture: fields without effect
    on the weights, generation_config.json, and the tokenizer of a checkpoint that has none are taken from it; None:
    from the folder that the run was imported from. `options` are those of `mb_models.hf.export.export_model`.

    Raises:
        mb_models.errors.HuggingFaceFolderError: the source has no usable config.json.
        mb_checkpoint.CheckpointNotFoundError: there is no checkpoint, or none that is intact.
        mb_checkpoint.errors.IncompleteCheckpointError: it is one checkpoint, and damaged.
        mb_models.errors.HuggingFaceError: no supported transformers model computes the same result.
        mb_models.errors.PeftError: adapters are requested of a run that has none.
    """
    if source is not None:
        read_config(source)
    saved = SavedRun.find(run, purpose="export", log=log, verify=part.index == 0)
    config = saved.config
    section = require_convertible(config.model, source=run)
    if merge:
        require_adapters(config.peft)
    layers, checkpoint = HOST_LAYERS[family_of(section).name], saved.checkpoint.path
    carried, has_tokenizer = source or checkpoint, saved_tokenizer_file(checkpoint) is not None
    with (
        model_groups(World(), config, device=CPU) as groups,
        memory_mapped_model(section, groups=groups, layer_spec=layers, folder=out.parent) as chunk,
    ):
        export_model(
            chunk,
            out,
            section=section,
            load=partial(saved.load, [chunk], groups),
            pg_collection=groups,
            peft=config.peft,
            adapters_only=adapters,
            carried=carried,
            tokenizer_vocab_size=saved.tokenizer().vocab_size if has_tokenizer else 0,
            padded_vocabulary=saved.padded_vocabulary,
            base=config.checkpoint.pretrained_checkpoint or "",
            copy_files=partial(copy_tokenizer_files, checkpoint if has_tokenizer else carried),
            part=part,
            **options,
        )
    return saved.checkpoint.step or 0
