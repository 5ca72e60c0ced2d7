"""Commands on runs: `mb report`, `watch` and `bench`."""

import typer

from mb_metrics.trainer_api import BenchOptions, ReportOptions
from mb_metrics.trainer_api import app as mb_metrics_app
from mb_schema.commands import CommandWithExample, common_options, exit_codes
from mb_trainer.cli.options import command

runs = typer.Typer()


@runs.command(
    cls=CommandWithExample,
    epilog="runs/a runs/b --out compared.html",
    help=mb_metrics_app.report.__doc__,
)
@common_options
def report(options: ReportOptions) -> None:
    """Report on runs, with the settings of their recipes as baselines."""
    with exit_codes():
        options.run(command("baseline").baselines(options.runs) if options.runs else {})


runs.add_typer(mb_metrics_app.watching)


@runs.command(
    cls=CommandWithExample,
    epilog='gpt_tiny --steps 20 --against "model.hidden_size=128"',
    context_settings={"ignore_unknown_options": True, "allow_extra_args": False},
    help=mb_metrics_app.bench.__doc__,
)
@common_options
def bench(options: BenchOptions) -> None:
    """Measure the speed of recipes."""
    with exit_codes():
        options.run(command("bench").bench_command)
