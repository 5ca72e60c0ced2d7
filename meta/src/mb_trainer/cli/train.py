"""Commands that train: `mb pretrain`, `finetune` and `tune`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mb_checkpoint.trainer_api import Trust
from mb_schema.commands import common_options
from mb_trainer.cli.options import (
    AllowOom,
    ConfigFiles,
    NoNumaBinding,
    Out,
    Processes,
    Recipe,
    ResumeWithChanges,
    command,
    exit_with,
)

train = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """Arguments and options of a run."""

    recipe: Recipe = None
    config: ConfigFiles = None
    out: Out = None
    nproc: Processes = None
    resume_with_changes: ResumeWithChanges = False
    allow_oom: AllowOom = False
    trust: Trust = None
    no_numa_binding: NoNumaBinding = False

    def start(self, name: str) -> NoReturn:
        """Run the command of this name, and exit with its code."""
        exit_with(
            lambda: command("train").pretrain(
                list(self.recipe or []),
                files=self.config or [],
                out=self.out,
                nproc=self.nproc,
                resume_with_changes=self.resume_with_changes,
                trust=self.trust or [],
                numa_binding=not self.no_numa_binding,
                command=name,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainArguments(RunArguments):
    """Arguments and options of `mb pretrain`."""

    from_megatron_lm: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Resume a run of Megatron-LM from its folder of checkpoints, with the arguments in it.",
            show_default=False,
        ),
    ] = None
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --from-megatron-lm: the script that started it, in place of the arguments in the checkpoint.",
            show_default=False,
        ),
    ] = None
    variable: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value of a variable of the script.", show_default=False
        ),
    ] = None
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave out flags of custom code in the script.")
    ] = False

    def start(self, name: str) -> NoReturn:
        """Run the command of this name, and exit with its code."""
        if self.from_megatron_lm is None:
            if self.script is not None or self.variable or self.ignore_unknown:
                raise typer.BadParameter("--script, --set and --ignore-unknown need --from-megatron-lm DIR.")
            RunArguments.start(self, name)
        exit_with(
            lambda: command("train").pretrain_from_megatron_lm(
                self.from_megatron_lm,
                script=self.script,
                variables=self.variable or [],
                ignore_unknown=self.ignore_unknown,
                overrides=list(self.recipe or []),
                files=self.config or [],
                out=self.out,
                nproc=self.nproc,
                resume_with_changes=self.resume_with_changes,
                trust=self.trust or [],
                numa_binding=not self.no_numa_binding,
            )
        )


@train.command(epilog="Example: mb pretrain gpt_tiny train.train_iters=50 optimizer.lr=1e-3 --out runs/try")
@common_options
def pretrain(run: PretrainArguments) -> None:
    """Train a model from scratch, or resume where the run folder's newest checkpoint stopped.

    With no argument it trains the recipe gpt_tiny: a GPT of five million parameters on the source files of this
    Python's standard library, on the CPU or one GPU.

    The run folder receives run_config.yaml, metrics.jsonl (a JSON object per step), events.jsonl, tensorboard/,
    checkpoints/ and log.txt. Running the same command again resumes, or reports that the run is complete.

    Overrides are dotted paths: train.train_iters=50, model.num_layers=2, optimizer.lr=1e-3; the run_config.yaml of any
    run lists all fields with their values. Low to high: class
    default, recipe, --config files in order, command line. Ctrl-C saves a checkpoint and stops; a second one stops
    at once.

    Several processes: mb pretrain --nproc 2 model.tensor_model_parallel_size=2. On several machines start the same
    command with torchrun (torchrun ... -m mb_trainer pretrain ...) or srun, without --nproc.

    --from-megatron-lm DIR --script pretrain.sh resumes a run of Megatron-LM; the first lines state what was taken from
    where, and what differs.
    """
    run.start("pretrain")


@train.command(epilog="Example: mb finetune lora_tiny peft.dim=16 --out runs/lora")
@common_options
def finetune(run: RunArguments) -> None:
    """Train on from the weights in checkpoint.pretrained_checkpoint, all of them or adapters alone.

    peft=lora, peft=canonical_lora or peft=dora trains adapters (peft.dim, peft.alpha, peft.dropout,
    peft.target_modules); checkpoints then hold the adapters alone. Everything else is as with mb pretrain.

    The recipe lora_tiny starts from what mb pretrain gpt_tiny made in runs/gpt_tiny.
    """
    run.start("finetune")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneArguments:
    """Arguments and options of `mb tune`."""

    recipe: Recipe = None
    config: ConfigFiles = None
    nproc: Processes = None
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="N", help="Time of the search; a trial that may not fit is not started."
        ),
    ] = 10.0
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Measured steps of a trial.")] = 10
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file that --config reads.")] = Path(
        "tuned.yaml"
    )


@train.command(epilog="Example: mb tune gpt_350m train.global_batch_size=32 --minutes 10")
@common_options
def tune(run: TuneArguments) -> None:
    """Measure which settings are fastest on this machine, and write them to a file for --config.

    Starts from the given settings, on a GPU with perf=auto, and tries one setting after another for a few steps each:
    the size of microbatches, CUDA graphs, fused kernels, the processes that load data. A setting is kept if the steps
    are shorter by 2% and the losses are those of the first run. Running out of memory is a result like any other. The
    table shows every trial, and what the time did not suffice for. Nothing else changes: the file is applied with
    --config tuned.yaml.
    """
    exit_with(
        lambda: command("tune").tune(
            list(run.recipe or []),
            files=run.config or [],
            processes=run.nproc,
            minutes=run.minutes,
            steps=run.steps,
            out=run.out,
        )
    )
