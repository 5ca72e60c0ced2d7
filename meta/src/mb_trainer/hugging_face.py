"""Conversion of checkpoints from and to Hugging Face folders, in one process. Imports torch and megatron."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from mb_checkpoint import save_model_weights
from mb_data.tokenizer_loading import TOKENIZER_FILES, copy_tokenizer_files
from mb_host.layers import host_block_spec
from mb_launch import World
from mb_loop import TrainState
from mb_models.hf.conversion import memory_mapped_model, require_gpt, section_of_folder, weights_dtype
from mb_models.hf.export import export_model
from mb_models.hf.load import load_hf_weights
from mb_trainer.config import ConfigContainer, GPTModelConfig, TextCorpusConfig, TokenizerConfig
from mb_trainer.model import model_groups
from mb_trainer.recipes import gpt_tiny
from mb_trainer.saved_run import SavedRun
from mb_trainer.state import GlobalState

CPU = torch.device("cpu")
LONGEST = 2048
"""Sequence length after an import, unless the model's maximum is lower; a default for the user to raise."""
PRECISION = {torch.bfloat16: "bf16_mixed", torch.float16: "fp16_mixed"}
"""Mixed-precision settings by the type of the weights."""


def import_folder(folder: Path, out: Path) -> int:
    """Write `out/checkpoints` and `out/run_config.yaml` from a folder of Llama, Qwen or Mixtral.

    Return the number of parameters. The checkpoint can be loaded under any parallelism. run_config.yaml is a
    complete configuration that starts from it.

    Raises:
        mb_models.hf.errors.HuggingFaceError: the folder is incomplete, or Megatron would compute a different result.
    """
    section = section_of_folder(folder)
    out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer_files(folder, out)
    config = configuration(section, out=out)
    with (
        model_groups(World(), config, device=CPU) as groups,
        memory_mapped_model(section, groups=groups, layer_spec=host_block_spec, folder=out) as chunk,
    ):
        load_hf_weights([chunk], folder, pg_collection=groups)
        save_model_weights(
            out / "checkpoints",
            [chunk],
            state=GlobalState(cfg=config, train_state=TrainState()),
            pg_collection=groups,
            write_assets=partial(copy_tokenizer_files, folder),
        )
        parameters: int = sum(parameter.numel() for parameter in chunk.parameters())
    # an explicit null would count as set by the user
    config.to_yaml(out / "run_config.yaml", defaults=False)
    return parameters


def configuration(section: GPTModelConfig, *, out: Path) -> ConfigContainer:
    """Return a configuration that fine-tunes the imported model on the data of the recipe gpt_tiny."""
    config = gpt_tiny()
    section.seq_length = min(section.seq_length, LONGEST)
    config.model = section
    config.mixed_precision = PRECISION.get(weights_dtype(section))
    config.optimizer.lr, config.optimizer.min_lr = 1e-5, 1e-6
    tokenizer = out / TOKENIZER_FILES[0]
    if tokenizer.is_file():
        config.tokenizer = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer.resolve())
        )
    config.dataset = TextCorpusConfig(
        seq_length=section.seq_length, vocab_size=4096, dataloader_type="single", num_workers=0
    )
    config.checkpoint.pretrained_checkpoint = str((out / "checkpoints").resolve())
    return config


def export_run(run: Path, out: Path, *, log: Callable[[str], object], adapters: bool = False) -> int:
    """Write the newest intact checkpoint of a run as a transformers folder; return its step.

    `log` receives a message for each damaged checkpoint that was skipped.

    Adapters are merged; with `adapters`, only the adapters are written, in the format of peft. Padding rows of the
    vocabulary are kept. The tokenizer is copied.

    Raises:
        mb_checkpoint.CheckpointNotFoundError: there is no checkpoint, or none that is intact.
        mb_checkpoint.IncompleteCheckpointError: it is one checkpoint, and damaged.
        mb_models.hf.errors.HuggingFaceError: no supported transformers model computes the same result.
        mb_models.peft.errors.PeftError: adapters are requested of a run that has none.
    """
    saved = SavedRun.find(run, purpose="export", log=log)
    config = saved.config
    section = require_gpt(config.model, source=run)
    with (
        model_groups(World(), config, device=CPU) as groups,
        memory_mapped_model(
            section,
            groups=groups,
            layer_spec=host_block_spec,
            folder=out.parent,
        ) as chunk,
    ):
        export_model(
            chunk,
            out,
            section=section,
            load=partial(saved.load, [chunk], groups),
            pg_collection=groups,
            peft=config.peft,
            adapters_only=adapters,
        )
    copy_tokenizer_files(saved.checkpoint.path, out)
    return saved.checkpoint.step or 0
