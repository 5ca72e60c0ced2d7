"""What the trainer imports from mb_resilience beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_resilience.fault_tolerance.monitor_client import require_monitor as require_monitor
    from mb_resilience.hangs.reporter import newest_report as newest_report
    from mb_resilience.monitors import RunMonitors as RunMonitors
    from mb_resilience.monitors import build_monitors as build_monitors
    from mb_resilience.restarts.arguments import prepare_environment as prepare_environment
    from mb_resilience.restarts.arguments import restart_fields as restart_fields
    from mb_resilience.restarts.nvrx import run_with_restarts as run_with_restarts
    from mb_resilience.restarts.rank_keeper import keep_run_alive as keep_run_alive
    from mb_resilience.rules import PATH_FIELDS as PATH_FIELDS
    from mb_resilience.stops.signals import announce_stop as announce_stop
    from mb_resilience.stragglers.detectors import StragglerDetectors as StragglerDetectors
    from mb_resilience.stragglers.detectors import build_straggler_detectors as build_straggler_detectors

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
