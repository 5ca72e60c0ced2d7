"""Signals, agreed stops and fault handling for distributed training.

A run that is told to stop ends its step first:

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

from mb_resilience import _lazy

if TYPE_CHECKING:
    from mb_resilience.agreement import AgreedStop as AgreedStop
    from mb_resilience.agreement import KeyValueStore as KeyValueStore
    from mb_resilience.agreement import Rank0SilentError as Rank0SilentError
    from mb_resilience.agreement import StopOrderError as StopOrderError
    from mb_resilience.agreement import StopSetupError as StopSetupError
    from mb_resilience.agreement import Watcher as Watcher
    from mb_resilience.config import FaultToleranceConfig as FaultToleranceConfig
    from mb_resilience.config import InProcessRestartConfig as InProcessRestartConfig
    from mb_resilience.config import NVRxStragglerDetectionConfig as NVRxStragglerDetectionConfig
    from mb_resilience.config import RerunStateMachineConfig as RerunStateMachineConfig
    from mb_resilience.config import StragglerDetectionConfig as StragglerDetectionConfig
    from mb_resilience.deadline import AnyOf as AnyOf
    from mb_resilience.deadline import Deadline as Deadline
    from mb_resilience.faults import Fault as Fault
    from mb_resilience.faults import FaultError as FaultError
    from mb_resilience.faults import FaultSettings as FaultSettings
    from mb_resilience.faults import SimulatedFault as SimulatedFault
    from mb_resilience.faults import agree_on_fault as agree_on_fault
    from mb_resilience.faults import draw_fault as draw_fault
    from mb_resilience.flight_recorder import RecorderSettings as RecorderSettings
    from mb_resilience.flight_recorder import flight_recorder_environment as flight_recorder_environment
    from mb_resilience.hang_reporter import HangReporter as HangReporter
    from mb_resilience.nvrx_straggler import Detector as Detector
    from mb_resilience.nvrx_straggler import DetectorError as DetectorError
    from mb_resilience.nvrx_straggler import NVRxStragglers as NVRxStragglers
    from mb_resilience.nvrx_straggler import PerformanceReport as PerformanceReport
    from mb_resilience.nvrx_straggler import Scores as Scores
    from mb_resilience.restart import Attempt as Attempt
    from mb_resilience.restart import RestartSetupError as RestartSetupError
    from mb_resilience.rules import RULES as RULES
    from mb_resilience.rules import Rule as Rule
    from mb_resilience.sections import MonitorClient as MonitorClient
    from mb_resilience.sections import NoMonitorError as NoMonitorError
    from mb_resilience.sections import Sections as Sections
    from mb_resilience.signals import SignalShield as SignalShield
    from mb_resilience.signals import SignalWatcher as SignalWatcher
    from mb_resilience.straggler import StragglerTimer as StragglerTimer
    from mb_resilience.straggler_report import RankSpeed as RankSpeed
    from mb_resilience.straggler_report import SpeedReport as SpeedReport
    from mb_resilience.straggler_switch import StragglerSwitch as StragglerSwitch
    from mb_resilience.straggler_switch import SwitchPortError as SwitchPortError

_HOMES = {
    "AgreedStop": "agreement",
    "AnyOf": "deadline",
    "Deadline": "deadline",
    "Attempt": "restart",
    "Detector": "nvrx_straggler",
    "DetectorError": "nvrx_straggler",
    "Fault": "faults",
    "FaultError": "faults",
    "FaultSettings": "faults",
    "FaultToleranceConfig": "config",
    "HangReporter": "hang_reporter",
    "InProcessRestartConfig": "config",
    "KeyValueStore": "agreement",
    "MonitorClient": "sections",
    "NVRxStragglerDetectionConfig": "config",
    "NVRxStragglers": "nvrx_straggler",
    "NoMonitorError": "sections",
    "PerformanceReport": "nvrx_straggler",
    "RULES": "rules",
    "Rank0SilentError": "agreement",
    "RankSpeed": "straggler_report",
    "RecorderSettings": "flight_recorder",
    "RerunStateMachineConfig": "config",
    "RestartSetupError": "restart",
    "Rule": "rules",
    "Scores": "nvrx_straggler",
    "Sections": "sections",
    "SignalShield": "signals",
    "SignalWatcher": "signals",
    "SimulatedFault": "faults",
    "SpeedReport": "straggler_report",
    "StopOrderError": "agreement",
    "StopSetupError": "agreement",
    "StragglerDetectionConfig": "config",
    "StragglerSwitch": "straggler_switch",
    "StragglerTimer": "straggler",
    "SwitchPortError": "straggler_switch",
    "Watcher": "agreement",
    "agree_on_fault": "faults",
    "draw_fault": "faults",
    "flight_recorder_environment": "flight_recorder",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
