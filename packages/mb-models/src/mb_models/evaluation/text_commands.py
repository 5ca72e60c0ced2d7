"""Commands `sample` and `eval` for the program of a trainer. Requires typer (extra `cli`)."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from mb_models.evaluation.task_command import OpenLM, TaskOptions, run_tasks, table_lines

if TYPE_CHECKING:
    from mb_models.evaluation.perplexity import Perplexity


class TextRuns(Protocol):
    """Sampling and evaluation of the runs of a trainer. Under a launcher every rank calls the same functions."""

    def sample_run(
        self,
        run: Path,
        *,
        prompts: Sequence[str],
        tokens: int,
        temperature: float,
        seed: int,
        chat: bool,
        log: Callable[[str], object],
    ) -> Iterator[tuple[int, str]]:
        """Yield the number of a prompt and its text, then the generated text, piece by piece; then the next prompt."""

    def evaluate_run(
        self, run: Path, *, complete: bool, log: Callable[[str], object]
    ) -> "tuple[int, list[Perplexity]]":
        """Return the step of the newest checkpoint, and its perplexity on each validation set."""


def add_text_commands(
    app: typer.Typer,
    *,
    runs: Callable[[], TextRuns],
    open_lm: Callable[[], OpenLM],
    prints: Callable[[], bool],
    reported: Callable[[Callable[[], int]], int],
    trust: Any,
    with_fields: Callable[[Callable[..., None]], Callable[..., None]],
) -> None:
    """Add the two commands to a program.

    Args:
        app: the program.
        runs: returns sampling and evaluation; called when a command has checked its arguments.
        open_lm: returns the function that opens a run as a model of lm_eval; called when the tasks are loaded.
        prints: returns whether this process prints results: under a launcher, the first does.
        reported: calls a function and returns its exit code, or reports an error and returns that of the error.
        trust: type of the option `--trust`, whose callback trusts the folders for the length of the command.
        with_fields: decorator that replaces a parameter of a record of options by the fields of the record.
    """

    def log(line: str) -> None:
        if prints():
            print(line, file=sys.stderr)

    _add_sample(app, runs=runs, prints=prints, reported=reported, trust=trust, log=log)
    _add_eval(
        app,
        runs=runs,
        open_lm=open_lm,
        prints=prints,
        reported=reported,
        trust=trust,
        with_fields=with_fields,
        log=log,
    )


def _add_sample(
    app: typer.Typer,
    *,
    runs: Callable[[], TextRuns],
    prints: Callable[[], bool],
    reported: Callable[[Callable[[], int]], int],
    trust: Any,
    log: Callable[[str], object],
) -> None:
    @app.command(epilog='Example: mb sample runs/gpt_tiny --prompt "def " --tokens 80')
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
        trust: trust = None,
    ) -> None:
        """Print text from the newest valid checkpoint of a run, so that a person sees what was learned."""
        prompts = prompt or ["Hello" if chat else "def "]
        if not all(prompts):
            raise typer.BadParameter(
                "must not be empty: the first token has to follow something", param_hint="--prompt"
            )

        def work() -> int:
            pieces = runs().sample_run(
                run, prompts=prompts, tokens=tokens, temperature=temperature, seed=seed, chat=chat, log=log
            )
            if not prints():
                deque(pieces, maxlen=0)
            elif as_json:
                print(json.dumps(rows_of(pieces), ensure_ascii=False))
            else:
                print_pieces(pieces)
            return 0

        raise typer.Exit(reported(work))


def _add_eval(
    app: typer.Typer,
    *,
    runs: Callable[[], TextRuns],
    open_lm: Callable[[], OpenLM],
    prints: Callable[[], bool],
    reported: Callable[[Callable[[], int]], int],
    trust: Any,
    with_fields: Callable[[Callable[..., None]], Callable[..., None]],
    log: Callable[[str], object],
) -> None:
    @app.command("eval", epilog="Example: mb eval runs/gpt_tiny --all")
    @with_fields
    def evaluate(
        run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
        options: TaskOptions,
        complete: Annotated[
            bool, typer.Option("--all", help="Read all held-out data, to its last token.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
        trust: trust = None,
    ) -> None:
        """Print loss and perplexity of the newest valid checkpoint on the held-out data of its run.

        They are those of the last validation before the checkpoint, over the same sequences, and also by the length of
        the documents. Validation sets are listed apart.

        With --tasks, print the metrics of tasks of lm-evaluation-harness instead (extra lm-eval).

        One process evaluates under any parallelism of the run. Under torchrun or srun, the processes share the model
        by tensor parallelism, up to that of the run; further ones share the requests of --tasks.
        """
        options.require_tasks()
        if complete and options.tasks is not None:
            raise typer.BadParameter(
                "applies to the held-out data of the run, not to --tasks", param_hint="--all"
            )

        def work() -> int:
            if options.tasks is not None:
                return run_tasks(run, options, open_lm=open_lm, log=log, prints=prints, as_json=as_json)
            step, sets = runs().evaluate_run(run, complete=complete, log=log)
            if not prints():
                return 0
            if as_json:
                print(json.dumps({"step": step, "sets": [each.as_dict() for each in sets]}))
            else:
                print("\n".join([f"step {step}", *perplexity_lines(sets)]))
            return 0

        raise typer.Exit(reported(work))


def rows_of(pieces: Iterable[tuple[int, str]]) -> list[dict[str, str]]:
    """Return prompt and text of each prompt of `TextRuns.sample_run`."""
    found: list[list[str]] = []
    for number, text in pieces:
        if number == len(found):
            found.append([])
        found[-1].append(text)
    return [{"prompt": prompt, "text": "".join(rest)} for prompt, *rest in found]


def print_pieces(pieces: Iterable[tuple[int, str]]) -> None:
    """Print the pieces as they come, with an empty line between the prompts."""
    previous = 0
    for number, text in pieces:
        print("\n\n" if number > previous else "", text, sep="", end="", flush=True)
        previous = number
    print()


def perplexity_lines(sets: "list[Perplexity]") -> list[str]:
    """Return a table of sets and their buckets. A set without a token in the loss has neither loss nor perplexity."""
    rows: list[tuple[str, ...]] = [("set", "tokens", "loss", "perplexity")]
    for each in sets:
        for indent, part in [("", each), *(("  documents of ", bucket) for bucket in each.buckets)]:
            rows.append(
                (
                    f"{indent}{part.name or 'validation'}",
                    f"{part.tokens:,}",
                    f"{part.loss:.6f}" if part.tokens else "no token in the loss",
                    f"{part.value:.4f}" if part.tokens else "-",
                )
            )
    return table_lines(rows, left=1)
