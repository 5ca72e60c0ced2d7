"""Newest checkpoint of a run, read in one process for sampling and export. Imports torch and megatron."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import load_model_weights
from mb_checkpoint.trainer_api import SelectedCheckpoint, convert_once, require_newest_intact
from mb_data import Tokenizer, load_saved_tokenizer
from mb_models import padded_vocab_size
from mb_models.trainer_api import unshard
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY
from mb_trainer.run.pretrained import IMPORT
from mb_trainer.run.run_folder import checkpoints_of_run


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """Newest intact checkpoint of a run, with its configuration."""

    checkpoint: SelectedCheckpoint
    config: ConfigContainer
    """Without parallelism but that of the reading processes: shards are merged while they are loaded."""
    verify: bool = True
    """Whether contents are verified; False: another process does so."""
    padded_vocabulary: bool = False
    """Whether the size of the vocabulary is derived from the tokenizer, so that further rows are padding."""

    @classmethod
    def find(
        cls, run: Path, *, purpose: str, log: Callable[[str], object], verify: bool = True, **processes: Any
    ) -> Self:
        """Return the run of a folder. Arguments and errors as `require_newest_intact` and `unshard`."""
        folder = checkpoints_of_run(run)
        checkpoint = require_newest_intact(folder, purpose=purpose, contents=verify, log=log)
        config = ConfigContainer.from_yaml(checkpoint.path / "run_config.yaml", REGISTRY.classes)
        model = config.model
        padded = model.vocab_size is None
        saved = cls(checkpoint=checkpoint, config=config, verify=verify, padded_vocabulary=padded)
        if model.vocab_size is None:  # the rows of the embedding depend on the parallelism of the run
            model.vocab_size = padded_vocab_size(
                saved.tokenizer().vocab_size,
                divisible_by=model.make_vocab_size_divisible_by,
                tensor_parallel_size=model.tensor_model_parallel_size,
            )
        unshard(model, **processes)
        if config.peft is not None:
            convert_once(config.checkpoint.pretrained_checkpoint, command=IMPORT, log=log)
        return saved

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that is saved with the checkpoint."""
        return load_saved_tokenizer(self.checkpoint.path, self.config.tokenizer)

    def load(
        self,
        chunks: list[Any],
        groups: ProcessGroupCollection,
        is_selected: Callable[[str], bool] | None = None,
        is_needed: Callable[[str], bool] | None = None,
    ) -> None:
        """Load the weights with selected names, and (needed) ones under adapters; None: all weights."""
        has_adapters = self.config.peft is not None
        load_model_weights(
            self.checkpoint.path,
            chunks,
            pg_collection=groups,
            verify_integrity=has_adapters and self.verify,  # under adapters; the rest has been verified
            key_filter=is_selected,
            base=self.config.checkpoint.pretrained_checkpoint if has_adapters else None,
            base_filter=is_needed,
        )
