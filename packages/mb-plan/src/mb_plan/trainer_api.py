"""What the trainer imports from mb_plan beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_plan.cli.console import read_chart as read_chart
    from mb_plan.cli.plan_report import print_plan as print_plan
    from mb_plan.cli.plan_report import write_memory_chart as write_memory_chart
    from mb_plan.cli.plan_report import write_step_chart as write_step_chart
    from mb_plan.cli.step_report import print_fitting as print_fitting
    from mb_plan.cli.step_report import print_prediction as print_prediction
    from mb_plan.cli.step_report import print_saves as print_saves
    from mb_plan.cli.sweep_report import print_report as print_report
    from mb_plan.cli.sweep_report import with_progress as with_progress
    from mb_plan.cli.sweep_report import write_sweep_chart as write_sweep_chart
    from mb_plan.sweep.fitting import fitting_changes as fitting_changes
    from mb_plan.sweep.grid import AxisLike as AxisLike
    from mb_plan.sweep.layouts import splits_sequences_where_possible as splits_sequences_where_possible
    from mb_plan.sweep.points import SweepReport as SweepReport
    from mb_plan.sweep.points import SweptPoint as SweptPoint
    from mb_plan.sweep.points import best_points as best_points
    from mb_plan.sweep.points import values_as_written as values_as_written
    from mb_plan.time.prediction import try_predict as try_predict
    from mb_plan.time.saves import SavePlan as SavePlan
    from mb_plan.time.saves import plan_saves as plan_saves

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
