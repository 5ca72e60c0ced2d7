"""Completion of a configuration with what its run folder and its checkpoints hold.

Each step is a function that returns changes, and reads what the changes before it have set; `complete` applies them
with their origin. No change replaces a value of the user:

1. `weights_of_model`: the folder of weights that a model section from AutoBridge names.
2. `forgotten_paths`: paths that another run has set to its own folder are not settings.
3. `run_paths`: unset paths are in the run folder.
4. `named_run_folders`: a run folder that is named means the checkpoints in it.
5. `own_start`: the run's own checkpoints in place of `checkpoint.load`, once it has saved.
6. `RunSource.read`: what the folders hold, which are known now.
7. `architecture_of_weights`: model section of the weights in `checkpoint.pretrained_checkpoint`.
8. `tokenizer_of_weights`: tokenizer of these weights.
9. `checkpoint_settings`: settings in the checkpoint that is loaded, with `checkpoint.use_checkpoint_args` (imports
   torch).

Fields that follow from other fields are resolved later, by `resolve_and_check`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import mb_checkpoint.trainer_api
from mb_checkpoint.trainer_api import (
    checkpoints_in,
    is_checkpoint_file,
    is_same_folder,
    released_start,
    resumable_directories,
    weight_directories,
    why_not_a_checkpoint,
)
from mb_config import Provenance
from mb_config.trainer_api import (
    expand_home_in,
    remember_resolved,
    set_field,
    stored_sections,
    stored_tokenizer,
)
from mb_data import tokenizer_settings_of_weights
from mb_data.trainer_api import HUGGING_FACE, original_tokenizer_settings
from mb_metrics import read_event_rows
from mb_metrics.trainer_api import CONFIG, RunFolder
from mb_models.trainer_api import AdoptedArchitecture, adopt_architecture, adopt_stored_architecture
from mb_schema.paths import is_url
from mb_trainer.config import ConfigContainer, HuggingFaceSource
from mb_trainer.run.data_checks import read_tokenizer
from mb_trainer.run.run_folder import PATH_FIELDS, settings_sources

RUN_PATHS = "run folder"
"""Rule under which paths of a run folder are set."""
OWN_PATHS = ("checkpoint.save", "checkpoint.load", "logger.tensorboard_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """Value that completion sets."""

    path: str
    value: Any
    rule: str | None = None
    """Origin of the value; None: the origin is that of the previous value."""
    of_run: bool = False
    """Whether the value is that of this run, and is not written to files of the configuration."""
    written: Any = None
    """What a file has in place of a value of this run; None: nothing."""
    parts: Sequence[str] | None = None
    """Fields of a section that change, if the value is a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Changes of a step, and messages for the user."""

    changes: Sequence[FieldChange] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """What the folders of a run hold, read once. Contents of checkpoints are verified later."""

    weights: Sequence[Path] = ()
    """Checkpoints in `checkpoint.pretrained_checkpoint`, newest first."""
    resumes: bool = False
    """Whether there is a checkpoint of the run to resume from."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Section of the run's saved settings."""
    pretrained_checkpoint: str | None = None
    """Initial weights by the run's saved settings."""

    @classmethod
    def read(cls, config: ConfigContainer, folder: RunFolder) -> Self:
        """Read the folders that a configuration names, whose paths are complete."""
        weights, sources = (
            config.checkpoint.pretrained_checkpoint,
            settings_sources(folder, config.checkpoint),
        )
        own = [source.saved for source in sources if source.is_resumed and source.saved.file.exists()]
        saved = next(iter(own), sources[0].saved)
        return cls(
            weights=[] if weights is None else weight_directories(Path(weights)),
            resumes=bool(resumable_directories(config.checkpoint)),
            tokenizer=saved.section("tokenizer"),
            pretrained_checkpoint=saved.section("checkpoint").get("pretrained_checkpoint"),
        )


def complete(
    config: ConfigContainer, folder: RunFolder, provenance: Provenance, *, for_any_start: bool = False
) -> list[str]:
    """Complete a configuration in place, record the origin of each value, and return messages for the user.

    With `for_any_start`, what depends on the checkpoints that the run has saved so far is left out: steps 5 and 9.
    """
    weights = weights_of_model(config)
    apply(weights.changes, config, provenance)
    set_run_paths(config, folder, provenance)
    notes = [*weights.notes]
    # an evaluation reads what is named
    if not for_any_start and not config.validation.skip_train:
        start = own_start(config, folder)
        apply(start.changes, config, provenance)
        notes += start.notes
    source = RunSource.read(config, folder)
    apply(architecture_of_weights(config, provenance), config, provenance)
    apply(tokenizer_of_weights(config, source, provenance), config, provenance)
    if not for_any_start and config.checkpoint.use_checkpoint_args:
        stored = checkpoint_settings(config, provenance)
        apply(stored.changes, config, provenance)
        notes += stored.notes
    return notes


def set_run_paths(config: ConfigContainer, folder: RunFolder, provenance: Provenance) -> None:
    """Set the paths of a configuration: steps 2 to 4, with a leading `~` expanded before."""
    expand_home_in(config, PATH_FIELDS)
    apply(forgotten_paths(config, provenance), config, provenance)
    for path in OWN_PATHS:  # one by one: `load` follows `save`
        apply(run_paths(config, folder, provenance, path), config, provenance)
    apply(named_run_folders(config), config, provenance)


def apply(changes: Iterable[FieldChange], config: ConfigContainer, provenance: Provenance) -> None:
    """Write changes to a configuration, with their origins."""
    for change in [*changes]:
        if "." in change.path:
            set_field(config, change.path, change.value)
        else:
            setattr(config, change.path, change.value)  # a section
        if change.of_run:
            remember_resolved(
                config, change.path, change.value, rule=RUN_PATHS, of_run=True, written=change.written
            )
        if change.rule is not None:
            parts = (
                [change.path] if change.parts is None else [f"{change.path}.{part}" for part in change.parts]
            )
            for path in parts:
                provenance.note(path, f"resolve: {change.rule}")


def weights_of_model(config: ConfigContainer) -> StepResult:
    """Start from the folder that the section of a model from AutoBridge names, unless another one is set."""
    folder = config.model.hf_weights if isinstance(config.model, HuggingFaceSource) else None
    if folder is None or config.checkpoint.pretrained_checkpoint is not None:
        return StepResult()
    path = "checkpoint.pretrained_checkpoint"
    return StepResult(
        changes=[FieldChange(path=path, value=folder)],
        notes=[f"{path}: {folder}, from AutoBridge (load_weights)"],
    )


def forgotten_paths(config: ConfigContainer, provenance: Provenance) -> Iterator[FieldChange]:
    """Unset the paths that a run has set to its own folder, in this object or in its run_config.yaml.

    Files of older versions hold them. They are recognized by their values: checkpoints and TensorBoard's files in one
    folder, under the names that a run gives them.
    """
    origins = {path: provenance.origin(path) for path in OWN_PATHS}
    own = [path for path, origin in origins.items() if origin == f"resolve: {RUN_PATHS}"]
    save, tensorboard = config.checkpoint.save, config.logger.tensorboard_dir
    if save and tensorboard and all(is_of_run_config(origins[path]) for path in (OWN_PATHS[0], OWN_PATHS[2])):
        folder = RunFolder(Path(save).parent)
        if (save, tensorboard) == (str(folder.checkpoints), str(folder.tensorboard)):
            own = [path for path in OWN_PATHS if path != OWN_PATHS[1] or config.checkpoint.load == save]
    for path in own:
        yield FieldChange(path=path, value=None, rule="unset")


def is_of_run_config(origin: str) -> bool:
    """Return whether a value is from a run_config.yaml."""
    return Path(origin.rpartition(":")[0]).name == CONFIG


def run_paths(
    config: ConfigContainer, folder: RunFolder, provenance: Provenance, path: str
) -> Iterator[FieldChange]:
    """Set a path to the run folder, if it is not set. A path that the user set to null stays null."""
    checkpoint = config.checkpoint
    own = checkpoint.save or str(folder.checkpoints)
    given, value = {
        "checkpoint.save": (checkpoint.save, str(folder.checkpoints)),
        "checkpoint.load": (checkpoint.load, own),
        "logger.tensorboard_dir": (config.logger.tensorboard_dir, str(folder.tensorboard)),
    }[path]
    if path == "checkpoint.load":
        if is_same_folder(given, str(folder.path)):
            yield FieldChange(path=path, value=own)
            return
        if checkpoint.save is None and why_not_a_checkpoint(Path(value)):
            return  # a run without saves, in a folder without checkpoints: there is nothing to resume
    if not given and not (given is None and provenance.by_user(path)):
        yield FieldChange(path=path, value=value, rule=RUN_PATHS, of_run=True)


def named_run_folders(config: ConfigContainer) -> Iterator[FieldChange]:
    """Replace a run folder in `load` and `pretrained_checkpoint` by the checkpoints in it."""
    for name in ("load", "pretrained_checkpoint"):
        named = getattr(config.checkpoint, name)
        if named and not is_url(named) and str(checkpoints_in(Path(named))) != str(Path(named)):
            yield FieldChange(path=f"checkpoint.{name}", value=str(checkpoints_in(Path(named))))


def own_start(config: ConfigContainer, folder: RunFolder) -> StepResult:
    """Resume from the run's own checkpoints if it has saved since it started elsewhere.

    Files keep the folder that it has started from, for other runs with these settings.
    """
    given = config.checkpoint.load
    released = released_start(config.checkpoint, events=read_event_rows(folder.events))
    if released is None:
        return StepResult()
    moved = released.load != given
    return StepResult(
        changes=[
            FieldChange(path="checkpoint.ckpt_step", value=None),
            FieldChange(path="checkpoint.load", value=released.load, of_run=moved, written=given),
        ],
        notes=[released.message],
    )


def architecture_of_weights(config: ConfigContainer, provenance: Provenance) -> list[FieldChange]:
    """Take the model section of the initial weights, if these are a folder of Hugging Face."""
    adopted = adopt_architecture(config.model, config.checkpoint.pretrained_checkpoint, origins=provenance)
    return architecture_changes(config, adopted, rule="config.json of checkpoint.pretrained_checkpoint")


def architecture_changes(
    config: ConfigContainer, adopted: AdoptedArchitecture, *, rule: str
) -> list[FieldChange]:
    """Return the change of the model section, if there is one."""
    if adopted.section is config.model:
        return []
    return [FieldChange(path="model", value=adopted.section, rule=rule, parts=adopted.fields)]


def tokenizer_of_weights(
    config: ConfigContainer, source: RunSource, provenance: Provenance
) -> Iterator[FieldChange]:
    """Take the tokenizer of the weights from which a run starts, unless the user has set one.

    A resumed run keeps its original tokenizer; `kept_by_run` locates its files.
    """
    chosen = any(provenance.by_user(f"tokenizer.{name}") for name in ("tokenizer_type", "tokenizer_model"))
    if chosen or config.tokenizer.tokenizer_type not in (None, HUGGING_FACE):
        return
    original = original_tokenizer_settings(source.tokenizer)
    if original is not None and not is_checkpoint_file(
        Path(original["tokenizer_model"]), weights=source.pretrained_checkpoint
    ):
        original = None
    taken = tokenizer_settings_of_weights(
        source.weights, original=original, is_resumed=source.resumes, read_section=read_tokenizer
    )
    for name, value in taken.items():
        if not provenance.by_user(f"tokenizer.{name}"):
            yield FieldChange(
                path=f"tokenizer.{name}",
                value=value,
                rule="the tokenizer of checkpoint.pretrained_checkpoint",
            )


def checkpoint_settings(config: ConfigContainer, provenance: Provenance) -> StepResult:
    """Take the settings of the checkpoint that the run loads where the user set nothing; a note for each conflict."""
    checkpoint = config.checkpoint
    settings = mb_checkpoint.trainer_api.find_stored_settings(checkpoint)  # imports torch, as late as this
    stored, rule = stored_sections(settings.run_config, settings.arguments), f"settings of {settings.path}"
    adopted = adopt_stored_architecture(
        config.model,
        stored["model"],
        origins=provenance,
        source=str(settings.path),
        parallel=checkpoint.use_mp_args_from_checkpoint_args,
    )
    changes = architecture_changes(config, adopted, rule=rule)
    if checkpoint.use_tokenizer_model_from_checkpoint_args:
        tokenizer = stored_tokenizer(config.tokenizer, stored["tokenizer"], origins=provenance)
        changes += [
            FieldChange(path=f"tokenizer.{name}", value=value, rule=rule) for name, value in tokenizer.items()
        ]
    return StepResult(changes=changes, notes=adopted.conflicts)
