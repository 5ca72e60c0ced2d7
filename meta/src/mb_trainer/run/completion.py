"""Completion of a configuration with what its run folder and its checkpoints hold.

Each step reads the values that those before it have set, and none replaces a value of the user:

1. `set_run_paths`: paths in the run folder, and the checkpoints of run folders that are named.
2. `adopt_architecture`: model section of the weights in `checkpoint.pretrained_checkpoint`.
3. `take_tokenizer`: tokenizer of these weights.
4. `release_start`: the run's own checkpoints in place of `checkpoint.load`, once it has saved.
5. `take_checkpoint_settings`: settings in the checkpoint that is loaded, with `checkpoint.use_checkpoint_args` (imports
   torch).

Fields that follow from other fields are resolved later, by `resolve_and_check`.
"""

from mb_config import Provenance
from mb_metrics.run.folder import RunFolder
from mb_models.hf.adoption import adopt_architecture
from mb_trainer.config import ConfigContainer
from mb_trainer.run.pretrained import take_checkpoint_settings
from mb_trainer.run.run_folder import release_start, set_run_paths
from mb_trainer.run.tokenizer_assets import take_tokenizer


def complete(config: ConfigContainer, folder: RunFolder, provenance: Provenance) -> list[str]:
    """Complete a configuration in place, record the origin of each value, and return messages for the user."""
    complete_for_any_start(config, folder, provenance)
    own = (
        None if config.validation.skip_train else release_start(config, folder)
    )  # an evaluation reads what is named
    conflicts = take_checkpoint_settings(config, provenance)
    return [*([] if own is None else [own]), *conflicts]


def complete_for_any_start(config: ConfigContainer, folder: RunFolder, provenance: Provenance) -> None:
    """Take steps 1 to 3, which do not depend on what the run has saved so far."""
    set_run_paths(config, folder, provenance)
    weights = config.checkpoint.pretrained_checkpoint
    config.model = adopt_architecture(config.model, weights, origins=provenance)
    take_tokenizer(config, run_config=folder.run_config, provenance=provenance)
