"""Initial weights of a fine-tuning, checked before a run. Standard library only."""

from collections.abc import Mapping
from pathlib import Path

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import CheckpointRulesError
from mb_checkpoint.formats.foreign import why_no_source
from mb_checkpoint.formats.layout import checkpoints_in
from mb_schema.paths import expand_home, is_url
from mb_schema.rules import Problem

FIELD = "checkpoint.pretrained_checkpoint"


def require_weights(section: CheckpointConfig) -> None:
    """Reject a fine-tuning without weights, unless a rule rejects it together with other problems.

    Rule V244 reads the section alone and applies with `checkpoint.finetune=true`. A command for fine-tuning needs
    weights with any settings, and the folder must hold a checkpoint.

    Raises:
        CheckpointRulesError: No weights are named, or the named folder has no checkpoint.
    """
    if section.finetune and section.pretrained_checkpoint is None:
        return  # V244
    named = section.pretrained_checkpoint or section.load
    if named is None:
        raise _error(
            "is not set",
            values={FIELD: None},
            why="fine-tuning starts from weights",
            fix=f"Name a run's checkpoints, such as {FIELD}=runs/gpt_tiny/checkpoints, or use mb pretrain.",
        )
    if is_url(named):
        return  # a rule on paths rejects it
    reason = why_no_source(str(checkpoints_in(Path(expand_home(named)))), resume=False)
    if reason is not None:
        raise _error(
            reason,
            values={FIELD: named},
            why="fine-tuning starts from one",
            fix="Make it first (mb pretrain gpt_tiny for the recipe lora_tiny), or name another, or the folder of a "
            "Hugging Face model.",
        )


def _error(message: str, *, values: Mapping[str, object], why: str, fix: str) -> CheckpointRulesError:
    problem = Problem(id="V244", fields=(FIELD,), message=message, why=why, fix=fix, values=values)
    return CheckpointRulesError([problem])
