"""Coordinated stops and fault handling for distributed training.

A run that receives a signal completes its current step before it stops:

>>> import os, signal
>>> from mb_resilience import AgreedStop, SignalWatcher
>>> with SignalWatcher() as watcher:
...     stop = AgreedStop(watcher)
...     for step in range(1, 6):
...         if step == 3:
...             os.kill(os.getpid(), signal.SIGTERM)
...         why = stop(step)
...         if why:
...             break
>>> step, why
(3, 'SIGTERM on rank 0')
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_resilience.config import FaultToleranceConfig as FaultToleranceConfig
    from mb_resilience.config import InProcessRestartConfig as InProcessRestartConfig
    from mb_resilience.config import NVRxStragglerDetectionConfig as NVRxStragglerDetectionConfig
    from mb_resilience.config import RerunStateMachineConfig as RerunStateMachineConfig
    from mb_resilience.config import StragglerDetectionConfig as StragglerDetectionConfig
    from mb_resilience.errors import FaultError as FaultError
    from mb_resilience.errors import NoMonitorError as NoMonitorError
    from mb_resilience.errors import NVRxDetectorError as NVRxDetectorError
    from mb_resilience.errors import Rank0TimeoutError as Rank0TimeoutError
    from mb_resilience.errors import ResilienceError as ResilienceError
    from mb_resilience.errors import RestartLimitError as RestartLimitError
    from mb_resilience.errors import RestartSetupError as RestartSetupError
    from mb_resilience.errors import StopOrderError as StopOrderError
    from mb_resilience.errors import StopSetupError as StopSetupError
    from mb_resilience.errors import SwitchPortError as SwitchPortError
    from mb_resilience.fault_tolerance.monitor_client import MonitorClient as MonitorClient
    from mb_resilience.fault_tolerance.section_reporter import SectionReporter as SectionReporter
    from mb_resilience.faults import Fault as Fault
    from mb_resilience.faults import FaultSettings as FaultSettings
    from mb_resilience.faults import SimulatedFault as SimulatedFault
    from mb_resilience.faults import agree_on_fault as agree_on_fault
    from mb_resilience.faults import sample_fault as sample_fault
    from mb_resilience.hangs.collective_records import GroupCollectives as GroupCollectives
    from mb_resilience.hangs.collective_records import missing_collectives as missing_collectives
    from mb_resilience.hangs.collective_records import parse_record as parse_record
    from mb_resilience.hangs.collective_records import read_dump_files as read_dump_files
    from mb_resilience.hangs.flight_recorder import FlightRecorderSettings as FlightRecorderSettings
    from mb_resilience.hangs.flight_recorder import flight_recorder_environment as flight_recorder_environment
    from mb_resilience.hangs.flight_recorder import start_flight_recorder as start_flight_recorder
    from mb_resilience.hangs.reporter import HangReporter as HangReporter
    from mb_resilience.process_group import rank_and_store as rank_and_store
    from mb_resilience.restarts.arguments import RestartAttempt as RestartAttempt
    from mb_resilience.restarts.rank_faults import RankFault as RankFault
    from mb_resilience.rules import RULES as RULES
    from mb_resilience.stops.agreed_stop import AgreedStop as AgreedStop
    from mb_resilience.stops.agreed_stop import Watcher as Watcher
    from mb_resilience.stops.decision_exchange import KeyValueStore as KeyValueStore
    from mb_resilience.stops.signals import IgnoreSignals as IgnoreSignals
    from mb_resilience.stops.signals import SignalWatcher as SignalWatcher
    from mb_resilience.stops.stop_requests import CombinedWatcher as CombinedWatcher
    from mb_resilience.stops.stop_requests import DeadlineWatcher as DeadlineWatcher
    from mb_resilience.stops.stop_requests import StopRequests as StopRequests
    from mb_resilience.stops.stop_requests import watch_stop_requests as watch_stop_requests
    from mb_resilience.stragglers.detection import StragglerTimer as StragglerTimer
    from mb_resilience.stragglers.nvrx_straggler import NVRxDetector as NVRxDetector
    from mb_resilience.stragglers.nvrx_straggler import NVRxStragglerMonitor as NVRxStragglerMonitor
    from mb_resilience.stragglers.report import RankSpeed as RankSpeed
    from mb_resilience.stragglers.report import SpeedReport as SpeedReport
    from mb_resilience.stragglers.scores import PerformanceReport as PerformanceReport
    from mb_resilience.stragglers.scores import StragglerScores as StragglerScores
    from mb_resilience.stragglers.speed_reporter import SpeedReporter as SpeedReporter
    from mb_resilience.stragglers.switch import StragglerSwitch as StragglerSwitch
    from mb_schema.rules import Rule as Rule

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
