"""`mb replay`: a step of a run again, from the checkpoint before it; mb-verify compares it with the run's metrics."""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mb_checkpoint.inspection import list_checkpoints
from mb_config import difference_lines
from mb_metrics.run_folder import RunFolder
from mb_trainer.commands.errors import reported
from mb_trainer.commands.train import worker_arguments
from mb_trainer.errors import RunFolderError
from mb_trainer.run_folder import changed_code
from mb_trainer.user_code import NO_CODE
from mb_verify.replay import ReplayPlan, plan_replay, run_replay
from mb_verify.replay_text import replay_as_data, replay_as_text


def replay(
    run: Path,
    overrides: Sequence[str],
    *,
    step: int,
    out: Path | None,
    nproc: int | None,
    full: bool,
    as_json: bool,
) -> int:
    """Make the step again, print its losses and the norms of its tensors, and return 1 if it differs from the run."""

    def work() -> int:
        if code := changed_code(RunFolder(run), NO_CODE):
            raise RunFolderError(
                f"{run}: was trained with code of the user, which a replay does not load.\n{difference_lines(code)}"
            )
        found = list_checkpoints(RunFolder(run).checkpoints)
        steps = {each.step for each in found if not (each.problems or each.non_persistent) and each.step}
        plan = plan_replay(run, step, checkpoints=steps)
        with TemporaryDirectory(prefix="mb-replay-") if out is None else nullcontext(str(out)) as folder:
            settings = [
                str(RunFolder(run).run_config),
                *replay_overrides(plan, run, Path(folder)),
                *overrides,
            ]
            processes = nproc or plan.processes
            ranks = [f"--nproc={processes}"] if processes > 1 else []
            arguments = [*ranks, *worker_arguments(settings, [], Path(folder), False)]
            made = run_replay(
                plan,
                [sys.executable, "-m", "mb_trainer", "pretrain", *arguments],
                folder=Path(folder),
                log=partial(print, file=sys.stderr, flush=True),
            )
        print(json.dumps(replay_as_data(made)) if as_json else replay_as_text(made, full=full))
        if not as_json:
            print(f"its data: mb data at {run} --step {step}")
        return 1 if made.differences else 0

    return reported(work)


def replay_overrides(plan: ReplayPlan, run: Path, folder: Path) -> tuple[str, ...]:
    """Return the overrides with which the settings of a run make the steps of a replay, and nothing else."""
    checkpoints = folder / "checkpoints"
    measured = [each for each in (plan.step - 1, plan.step) if each > plan.start]
    return (
        f"checkpoint.load={RunFolder(run).checkpoints if plan.start else checkpoints}",
        f"checkpoint.ckpt_step={plan.start or 'null'}",
        f"checkpoint.save={checkpoints}",
        "checkpoint.save_interval=null",
        "checkpoint.non_persistent_save_interval=null",
        "checkpoint.storage=null",
        f"train.exit_interval={plan.step}",
        "train.exit_duration_in_mins=null",
        f"logger.tensor_norms_steps={measured}".replace(" ", ""),
        "logger.tensorboard_dir=null",
        "logger.save_config_filepath=null",
        "logger.wandb_project=null",
        "logger.mlflow_experiment=null",
        "logger.comet_project=null",
    )
