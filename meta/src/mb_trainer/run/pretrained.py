"""What a run takes from the checkpoint it starts from, besides tensors, and the commands that convert weights."""

import sys
from importlib import import_module
from pathlib import Path

from mb_checkpoint.load.directories import weight_directories
from mb_config import Provenance
from mb_config.overrides.stored_sections import adopt_tokenizer, stored_sections
from mb_data import Tokenizer, save_tokenizer
from mb_models.hf.carried import carry_files
from mb_models.training.stored_architecture import adopt_stored_architecture
from mb_trainer.config import ConfigContainer

IMPORT, EXPORT = ((sys.executable, "-m", "mb_trainer", name) for name in ("import-hf", "export-hf"))


def save_assets(config: ConfigContainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer, and the small files that came with the initial weights, into a checkpoint."""
    named = config.checkpoint.pretrained_checkpoint
    save_tokenizer(tokenizer, folder)
    if named is not None:
        carry_files(weight_directories(Path(named)), folder)


def take_checkpoint_settings(config: ConfigContainer, provenance: Provenance) -> list[str]:
    """Take the settings of the checkpoint that the run loads where the user set nothing; return a line per conflict."""
    checkpoint = config.checkpoint
    if not checkpoint.use_checkpoint_args:
        return []
    found = import_module("mb_checkpoint.load.stored_settings").find_stored_settings(
        checkpoint
    )  # imports torch
    stored = stored_sections(found.run_config, found.arguments)
    config.model, conflicts = adopt_stored_architecture(
        config.model,
        stored["model"],
        origins=provenance,
        source=str(found.path),
        parallel=checkpoint.use_mp_args_from_checkpoint_args,
    )
    if checkpoint.use_tokenizer_model_from_checkpoint_args:
        adopt_tokenizer(config.tokenizer, stored["tokenizer"], origins=provenance, source=str(found.path))
    return conflicts
