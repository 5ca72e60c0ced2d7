"""What the trainer imports from mb_checkpoint beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_checkpoint.cli import app as app
    from mb_checkpoint.cli.app import Trust as Trust
    from mb_checkpoint.collectives import on_rank_zero as on_rank_zero
    from mb_checkpoint.collectives import read_for_all_ranks as read_for_all_ranks
    from mb_checkpoint.formats.converted_weights import convert_once as convert_once
    from mb_checkpoint.formats.converted_weights import environment_of_child as environment_of_child
    from mb_checkpoint.formats.foreign import is_same_folder as is_same_folder
    from mb_checkpoint.formats.layout import RUN_CHECKPOINTS as RUN_CHECKPOINTS
    from mb_checkpoint.formats.layout import RUN_CONFIG as RUN_CONFIG
    from mb_checkpoint.formats.layout import STEP_TRACKER as STEP_TRACKER
    from mb_checkpoint.formats.layout import checkpoints_in as checkpoints_in
    from mb_checkpoint.formats.layout import shared_save_roots as shared_save_roots
    from mb_checkpoint.formats.layout import steps_in as steps_in
    from mb_checkpoint.formats.layout import why_not_a_checkpoint as why_not_a_checkpoint
    from mb_checkpoint.inspect.integrity import require_newest_intact as require_newest_intact
    from mb_checkpoint.load.ckpt_step import released_start as released_start
    from mb_checkpoint.load.completion import resumed_step as resumed_step
    from mb_checkpoint.load.completion import (
        verify_last_checkpoint_on_all_ranks as verify_last_checkpoint_on_all_ranks,
    )
    from mb_checkpoint.load.directories import is_checkpoint_file as is_checkpoint_file
    from mb_checkpoint.load.directories import loads_from as loads_from
    from mb_checkpoint.load.directories import resumable_directories as resumable_directories
    from mb_checkpoint.load.directories import resumed_run_configs as resumed_run_configs
    from mb_checkpoint.load.directories import weight_directories as weight_directories
    from mb_checkpoint.load.initial_weights import require_weights as require_weights
    from mb_checkpoint.load.run_load import load_run as load_run
    from mb_checkpoint.load.run_status import ResumeStatus as ResumeStatus
    from mb_checkpoint.load.run_status import complete_message as complete_message
    from mb_checkpoint.load.select import SelectedCheckpoint as SelectedCheckpoint
    from mb_checkpoint.load.stored_settings import find_stored_settings as find_stored_settings
    from mb_checkpoint.locks import exclusive_lock as exclusive_lock
    from mb_checkpoint.locks import writer_lock as writer_lock
    from mb_checkpoint.rules import PATH_FIELDS as PATH_FIELDS
    from mb_checkpoint.save.commit import unwritable_reason as unwritable_reason
    from mb_checkpoint.save.exported_weights import hugging_face_copies as hugging_face_copies
    from mb_checkpoint.state.dataloader import warn_without_position as warn_without_position
    from mb_checkpoint.state.position_copies import position_callbacks as position_callbacks
    from mb_checkpoint.storage.mirror import complete_storage as complete_storage
    from mb_checkpoint.storage.run_config import StoredRunConfig as StoredRunConfig
    from mb_checkpoint.storage.run_config import stored_run_config as stored_run_config

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
