"""Command line `mb-metrics`: reports on runs. Requires the extra `cli`.

Each command imports its module when it is called, so that `--help` is fast.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from mb_metrics.cli_errors import exit_codes
from mb_metrics.parse.log import LogFormat
from mb_metrics.report.metric_names import MetricNames

if TYPE_CHECKING:
    from mb_metrics.cli_report import BaselineFinder

_FIND_BASELINE = "mb_metrics.find_baseline"


class CommandWithExample(TyperCommand):
    """Command whose epilog contains the arguments of an example; help prints them after the name of the program."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        arguments, self.epilog = self.epilog, f"Example: {ctx.command_path} {self.epilog}"
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = arguments


app = typer.Typer(
    help="Report on training runs: an HTML page, statistics as JSON, or a live display in the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def set_baseline_finder(context: typer.Context, find_baseline: "BaselineFinder") -> None:
    """Set the function that returns the baseline of a run, for the commands below `context`.

    A program that mounts `app` calls it in its callback. By default settings are not compared.
    """
    context.meta[_FIND_BASELINE] = find_baseline


_Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN", help="Run folders, or metrics.jsonl files.", show_default=False),
]
_Logs = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Log of another trainer; repeatable."),
]
_Format = Annotated[
    LogFormat | None,
    typer.Option(
        help="Trainer that wrote the logs of --from-log; default: detected from their lines.",
        show_default=False,
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        help="Default: report.html in the run folder, or in the current folder if runs are compared. Its folder is "
        "created.",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the statistics; write a page only with --out.")]
_Losses = Annotated[
    list[str] | None,
    typer.Option(
        "--loss",
        metavar="NAME",
        help="Name of a recorded metric that is a loss, the main one first; repeatable. Default: the usual names.",
        show_default=False,
    ),
]
_LearningRate = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the metric that is the learning rate. Default: the usual names, such as lr and train/lr.",
        show_default=False,
    ),
]


@app.command(cls=CommandWithExample, epilog="runs/a runs/b --out compared.html")
def report(
    context: typer.Context,
    runs: _Runs = None,
    from_log: _Logs = None,
    log_format: _Format = None,
    out: _Out = None,
    as_json: _Json = False,
    losses: _Losses = None,
    learning_rate: _LearningRate = None,
) -> None:
    """Write a report on a run, or a comparison of several runs, as one HTML file that needs no network.

    A run may be in progress, or killed. Logs of Megatron-LM, Megatron-Bridge, torchtitan and mb can be read, and the
    step-time lines that CloudAI reads.
    """
    if not runs and not from_log:
        raise typer.BadParameter("give a run folder, or a log with --from-log", param_hint="RUN")
    if log_format and not from_log:
        raise typer.BadParameter(
            "it is the format of a log, and no log is given. Add --from-log FILE", param_hint="--log-format"
        )
    with exit_codes():
        command = import_module("mb_metrics.cli_report")
        command.report(
            runs or [],
            logs=from_log or [],
            log_format=log_format,
            out=out,
            as_json=as_json,
            find_baseline=context.meta.get(_FIND_BASELINE, command.no_baseline),
            metric_names=MetricNames(losses=tuple(losses or ()), learning_rate=learning_rate),
        )


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a metrics.jsonl file.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 2.0,
    losses: _Losses = None,
    learning_rate: _LearningRate = None,
) -> None:
    """Display a run in the terminal: progress, loss, speed, time left, events. Ctrl-C ends the display, not the run.

    If the output is not a terminal, the current state is printed once.
    """
    with exit_codes():
        names = MetricNames(losses=tuple(losses or ()), learning_rate=learning_rate)
        import_module("mb_metrics.cli_watch").watch(run, seconds=seconds, metric_names=names)
