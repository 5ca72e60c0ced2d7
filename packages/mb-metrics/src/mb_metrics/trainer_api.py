"""What the trainer imports from mb_metrics beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_metrics.bench.command import BenchPlan as BenchPlan
    from mb_metrics.bench.command import measure_once as measure_once
    from mb_metrics.bench.request import BenchRequest as BenchRequest
    from mb_metrics.bench.request import bench_callbacks as bench_callbacks
    from mb_metrics.bench.result import BenchResult as BenchResult
    from mb_metrics.bench.tuning import Overrides as Overrides
    from mb_metrics.bench.tuning import Search as Search
    from mb_metrics.bench.tuning import Trial as Trial
    from mb_metrics.bench.tuning import override_file as override_file
    from mb_metrics.bench.tuning import search as search
    from mb_metrics.bench.tuning import table as table
    from mb_metrics.cli import app as app
    from mb_metrics.cli.app import BenchOptions as BenchOptions
    from mb_metrics.cli.app import ReportOptions as ReportOptions
    from mb_metrics.report.run_reader import folder_of_metrics as folder_of_metrics
    from mb_metrics.rules import PATH_FIELDS as PATH_FIELDS
    from mb_metrics.run.events import changed_code as changed_code
    from mb_metrics.run.folder import CONFIG as CONFIG
    from mb_metrics.run.folder import RunFolder as RunFolder
    from mb_metrics.run.logging_setup import captured_records as captured_records
    from mb_metrics.run.logging_setup import captured_warnings as captured_warnings
    from mb_metrics.run.rank_console import Bar as Bar
    from mb_metrics.run.rank_console import RankConsole as RankConsole
    from mb_metrics.run.summary import location_lines as location_lines
    from mb_metrics.run.user_loggers import open_comet as open_comet
    from mb_metrics.run.user_loggers import open_mlflow as open_mlflow
    from mb_metrics.run.user_loggers import open_tensorboard as open_tensorboard
    from mb_metrics.run.user_loggers import open_wandb as open_wandb

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
