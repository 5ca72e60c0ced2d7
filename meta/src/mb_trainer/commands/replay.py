"""`mb replay`: a step of a run again, as a `mb pretrain` command; mb-verify compares it with the run's metrics."""

from collections.abc import Sequence
from pathlib import Path

from mb_checkpoint import list_checkpoints
from mb_config import difference_lines
from mb_config.trainer_api import unattended_overrides
from mb_metrics.trainer_api import RunFolder, changed_code
from mb_trainer.commands.train import pretrain_command
from mb_trainer.errors import RunFolderError
from mb_verify import ReplayPlan
from mb_verify.trainer_api import ReplayOptions


def replay(path: Path, overrides: Sequence[str], options: ReplayOptions) -> int:
    """Make the step again and print the result; return 1 if it differs from the run."""
    run = RunFolder(path)

    def make_command(plan: ReplayPlan, processes: int, folder: Path) -> list[str]:
        settings = [str(run.run_config), *replay_overrides(plan, run, RunFolder(folder)), *overrides]
        return pretrain_command(settings, folder, processes=processes)

    if code := changed_code(run.events, {}):
        reason = "was trained with code of the user, which a replay does not load"
        raise RunFolderError(f"{run.path}: {reason}.\n{difference_lines(code)}")
    found = list_checkpoints(run.checkpoints)
    steps = {each.step for each in found if not (each.problems or each.non_persistent) and each.step}
    return options.run(run.path, make_command, checkpoints=steps)


def replay_overrides(plan: ReplayPlan, run: RunFolder, folder: RunFolder) -> tuple[str, ...]:
    """Return the overrides with which the settings of a run make the steps of a replay, and nothing else."""
    measured = [each for each in (plan.step - 1, plan.step) if each > plan.start]
    return (
        *unattended_overrides(checkpoints=folder.checkpoints),
        f"checkpoint.load={run.checkpoints if plan.start else folder.checkpoints}",
        f"checkpoint.ckpt_step={plan.start or 'null'}",
        "checkpoint.non_persistent_save_interval=null",
        "checkpoint.storage=null",
        f"train.exit_interval={plan.step}",
        f"logger.tensor_norms_steps={measured}".replace(" ", ""),
    )
