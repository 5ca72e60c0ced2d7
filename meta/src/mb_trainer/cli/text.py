"""Commands that use a trained model: `mb sample` and `mb eval`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from mb_checkpoint.trainer_api import Trust
from mb_schema.commands import common_options
from mb_trainer.cli.options import command, exit_with

text = typer.Typer()


@text.command(epilog='Example: mb sample runs/gpt_tiny --prompt "def " --tokens 80')
def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeatable.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 120,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token; higher is more varied.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random choice.")] = 1234,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="A prompt is a message, or a JSON list of them: apply the chat template."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print prompts and texts as JSON.")] = False,
    _trust: Trust = None,
) -> None:
    """Print text from the newest valid checkpoint of a run, so that a person sees what was learned."""
    prompts = prompt or ["Hello" if chat else "def "]
    if not all(prompts):
        raise typer.BadParameter(
            "must not be empty: the first token has to follow something", param_hint="--prompt"
        )
    exit_with(
        lambda: command("text").sample(
            run,
            prompts=prompts,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            chat=chat,
            as_json=as_json,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of `eval --tasks`."""

    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="TASK[,TASK...]",
            help="Evaluate on tasks of lm-evaluation-harness instead: files (*.yaml) or names, such as arc_easy. "
            "A task is code: its functions and templates run.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="--tasks: read so many documents of each task.", show_default=False
        ),
    ] = None
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="--tasks: solved examples in each prompt.", show_default=False),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="--tasks: sequences of a batch at most (default: 16).",
            show_default=False,
        ),
    ] = None
    chat: Annotated[bool, typer.Option("--chat", help="--tasks: apply the chat template.")] = False
    bos: Annotated[
        bool,
        typer.Option(
            "--bos",
            help="--tasks: begin each text with the tokenizer's beginning-of-sequence token, for models that were "
            "trained with it, such as an imported Llama.",
        ),
    ] = False

    def require_tasks(self) -> None:
        """Reject options that need `--tasks`.

        Raises:
            typer.BadParameter: one of them is given without it.
        """
        if self.tasks is not None:
            if not all(self.names):
                raise typer.BadParameter("needs a file or a name between the commas", param_hint="--tasks")
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise typer.BadParameter(
                    "needs --tasks, because it only applies to tasks",
                    param_hint=f"--{field.name.replace('_', '-')}",
                )

    @property
    def names(self) -> list[str]:
        """Files and names of tasks."""
        return [name.strip() for name in (self.tasks or "").split(",")]


@text.command("eval", epilog="Example: mb eval runs/gpt_tiny --all")
@common_options
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    options: TaskOptions,
    complete: Annotated[
        bool, typer.Option("--all", help="Read all held-out data, to its last token.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    _trust: Trust = None,
) -> None:
    """Print loss and perplexity of the newest valid checkpoint on the held-out data of its run.

    They are those of the last validation before the checkpoint, over the same sequences, and also by the length of
    the documents. Validation sets are listed apart.

    With --tasks, print the metrics of tasks of lm-evaluation-harness instead (extra lm-eval).

    One process evaluates under any parallelism of the run. Under torchrun or srun, the processes share the model
    by tensor parallelism, up to that of the run; further ones share the requests of --tasks.
    """
    options.require_tasks()
    if options.tasks is None:
        exit_with(lambda: command("text").evaluate(run, complete=complete, as_json=as_json))
    if complete:
        raise typer.BadParameter(
            "applies to the held-out data of the run, not to --tasks", param_hint="--all"
        )
    exit_with(
        lambda: command("tasks").evaluate(
            run,
            options.names,
            limit=options.limit,
            num_fewshot=options.num_fewshot,
            batch_size=options.batch_size or 16,
            chat=options.chat,
            bos=options.bos,
            as_json=as_json,
        )
    )
