"""Command line `mb-metrics`: reports on runs. Requires the extra `cli`.

Each command imports its module when it is called, so that `--help` is fast.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mb_metrics.parse.log import LogFormat
from mb_metrics.report.metric_names import MetricNames
from mb_schema.commands import CommandWithExample, common_options, exit_codes

if TYPE_CHECKING:
    from mb_metrics.cli.bench import CommandMaker
    from mb_metrics.cli.report import Baselines

app = typer.Typer(
    help="Report on training runs: an HTML page, statistics as JSON, or a live display in the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


watching = typer.Typer()
"""Command `watch`, which a trainer adds to its own."""
app.add_typer(watching)

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
_Serve = Annotated[
    bool,
    typer.Option(
        "--serve", help="Serve a page on this machine that follows the runs, and print its address."
    ),
]
_Port = Annotated[int, typer.Option(help="Port of --serve; 0: a free one.", min=0, max=65535)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Arguments and options of `report`."""

    runs: _Runs = None
    from_log: _Logs = None
    log_format: _Format = None
    out: _Out = None
    as_json: _Json = False
    serve: _Serve = False
    port: _Port = 0
    losses: _Losses = None
    learning_rate: _LearningRate = None

    def __post_init__(self) -> None:
        """Check that the options belong together.

        Raises:
            typer.BadParameter: One needs another, or excludes it.
        """
        if not self.runs and not self.from_log:
            raise typer.BadParameter("give a run folder, or a log with --from-log", param_hint="RUN")
        if self.log_format and not self.from_log:
            raise typer.BadParameter(
                "it is the format of a log, and no log is given. Add --from-log FILE",
                param_hint="--log-format",
            )
        if self.serve and (self.from_log or self.out or self.as_json):
            raise typer.BadParameter(
                "it serves run folders and metrics files, and writes nothing. Leave out --from-log, --out and --json",
                param_hint="--serve",
            )
        if self.port and not self.serve:
            raise typer.BadParameter("it is the port of a server. Add --serve", param_hint="--port")

    def run(self, baselines: "Baselines") -> None:
        """Write or serve the report. `baselines` are the settings that those of a run folder are compared with."""
        module, runs = import_module("mb_metrics.cli.report"), self.runs or []
        names = MetricNames(losses=tuple(self.losses or ()), learning_rate=self.learning_rate)
        if self.serve:
            module.serve(runs, port=self.port, metric_names=names, baselines=baselines)
            return
        module.report(
            runs,
            self.from_log or [],
            log_format=self.log_format,
            out=self.out,
            as_json=self.as_json,
            metric_names=names,
            baselines=baselines,
        )


@app.command(cls=CommandWithExample, epilog="runs/a runs/b --out compared.html")
@common_options
def report(options: ReportOptions) -> None:
    """Write a report on a run, or a comparison of several runs, as one HTML file that needs no network.

    A run may be in progress, or killed. Logs of Megatron-LM, Megatron-Bridge, torchtitan and mb can be read, and the
    step-time lines that CloudAI reads.
    """
    with exit_codes():
        options.run({})


@watching.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
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
        import_module("mb_metrics.cli.watch").watch(run, seconds=seconds, metric_names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Arguments and options of `bench`."""

    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Arguments and options of the run, as the trainer takes them; without a trainer the command of a "
            "program with the callbacks of mb_metrics.bench.request.",
            show_default=False,
        ),
    ]
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured steps.")] = 20
    warmup: Annotated[
        int, typer.Option(min=0, metavar="N", help="Steps before them, such as for compilation.")
    ] = 5
    profiled: Annotated[
        int, typer.Option(min=0, metavar="N", help="Steps after them, whose calls are counted.")
    ] = 2
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ARGUMENTS",
            help="Measure a second run in turn and print ratios: further overrides, or another run if it begins with "
            "neither KEY=VALUE nor an option.",
            show_default=False,
        ),
    ] = None
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each, in turn.")] = 1
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Write kernels.json in the run folder: kernels, gaps and waits of the profiled steps.",
        ),
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the run folders and their output here.", show_default=False),
    ] = None

    def run(self, make_command: "CommandMaker") -> None:
        """Measure and print; `make_command` returns the command of a run with the arguments."""
        module = import_module("mb_metrics.cli.bench")
        plan = module.BenchPlan(
            steps=self.steps,
            warmup=self.warmup,
            profiled=self.profiled,
            rounds=self.rounds,
            kernels=self.kernels,
        )
        module.bench(self.arguments, against=self.against, plan=plan, out=self.out, make_command=make_command)


@app.command(
    cls=CommandWithExample,
    epilog="python train.py",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": False},
)
@common_options
def bench(options: BenchOptions) -> None:
    """Measure the speed of a run and print it as JSON: step time, tokens/s, MFU, peak memory, host synchronizations.

    Each run is started for warmup + steps + profiled steps. It saves no checkpoint. On a GPU the time of a step is
    taken there, without synchronization. What cannot be measured is null: on a CPU the MFU, synchronizations and
    launches.
    """
    with exit_codes():
        options.run(import_module("mb_metrics.cli.bench").plain_command)
