"""Proof of an exact resume: record what each rank of a run holds and computes, compare two runs bit for bit.

The record of a run is a folder of text files, and comparing two of them needs no torch:

>>> import tempfile
>>> from pathlib import Path
>>> from mb_verify import RecordFile, compare, read_record
>>> folder = Path(tempfile.mkdtemp())
>>> for name, loss in (("uninterrupted", "2.5"), ("interrupted", "2.25")):
...     record = RecordFile(folder / name)
...     record.start(0)
...     record.step(1, {"losses: lm loss": loss})
>>> print(compare(read_record(folder / "uninterrupted"), read_record(folder / "interrupted")).first)
losses: lm loss, in step 1, rank 0: 2.5 in the uninterrupted run, 2.25 in the interrupted one
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_verify.comparison import CATEGORIES as CATEGORIES
    from mb_verify.comparison import CategoryCount as CategoryCount
    from mb_verify.comparison import Difference as Difference
    from mb_verify.comparison import Verdict as Verdict
    from mb_verify.comparison import compare as compare
    from mb_verify.diagnosis import EXIT_CODES as EXIT_CODES
    from mb_verify.diagnosis import ResumeProof as ResumeProof
    from mb_verify.diagnosis import diagnosis_lines as diagnosis_lines
    from mb_verify.drill import MakeCommand as MakeCommand
    from mb_verify.drill import run_drill as run_drill
    from mb_verify.drill_plan import DrillPlan as DrillPlan
    from mb_verify.drill_report import DRILL_EXIT_CODES as DRILL_EXIT_CODES
    from mb_verify.drill_report import DrillReport as DrillReport
    from mb_verify.drill_report import FaultOutcome as FaultOutcome
    from mb_verify.drill_text import drill_as_data as drill_as_data
    from mb_verify.drill_text import drill_as_text as drill_as_text
    from mb_verify.environment import RecordingRequest as RecordingRequest
    from mb_verify.environment import callbacks_from_environment as callbacks_from_environment
    from mb_verify.environment import record_file_from_environment as record_file_from_environment
    from mb_verify.errors import DrillError as DrillError
    from mb_verify.errors import InjectedFaultError as InjectedFaultError
    from mb_verify.errors import InterruptionError as InterruptionError
    from mb_verify.errors import RecordingRequestError as RecordingRequestError
    from mb_verify.errors import ReplayRequestError as ReplayRequestError
    from mb_verify.errors import VerificationError as VerificationError
    from mb_verify.fault_callback import FaultRequest as FaultRequest
    from mb_verify.fault_callback import InjectedFault as InjectedFault
    from mb_verify.faults import FAULTS as FAULTS
    from mb_verify.faults import FaultKind as FaultKind
    from mb_verify.faults import PlannedFault as PlannedFault
    from mb_verify.faults import plan_faults as plan_faults
    from mb_verify.faults import read_kinds as read_kinds
    from mb_verify.interruption import Interruption as Interruption
    from mb_verify.interruption import RunStart as RunStart
    from mb_verify.interruption import prove as prove
    from mb_verify.kill import KillAfterCheckpoint as KillAfterCheckpoint
    from mb_verify.recorder import Recorder as Recorder
    from mb_verify.recorder import StateReader as StateReader
    from mb_verify.replay import MetricDifference as MetricDifference
    from mb_verify.replay import Replay as Replay
    from mb_verify.replay import ReplayPlan as ReplayPlan
    from mb_verify.replay import plan_replay as plan_replay
    from mb_verify.replay import run_replay as run_replay
    from mb_verify.replay_text import replay_as_data as replay_as_data
    from mb_verify.replay_text import replay_as_text as replay_as_text
    from mb_verify.run_record import ALL_RANKS as ALL_RANKS
    from mb_verify.run_record import RecordFile as RecordFile
    from mb_verify.run_record import RecordPosition as RecordPosition
    from mb_verify.run_record import RecordRow as RecordRow
    from mb_verify.run_record import RunRecord as RunRecord
    from mb_verify.run_record import read_record as read_record
    from mb_verify.start_command import run_start_command as run_start_command
    from mb_verify.step_results import StepResultReader as StepResultReader
    from mb_verify.torch_state import read_torch_state as read_torch_state
    from mb_verify.torch_state import read_torch_step as read_torch_step
    from mb_verify.verdict_text import proof_as_data as proof_as_data
    from mb_verify.verdict_text import proof_as_text as proof_as_text
    from mb_verify.verdict_text import verdict_as_data as verdict_as_data
    from mb_verify.verdict_text import verdict_as_text as verdict_as_text
    from mb_verify.verdict_text import verdict_table as verdict_table

_HOMES = {
    "ALL_RANKS": "run_record",
    "CATEGORIES": "comparison",
    "CategoryCount": "comparison",
    "DRILL_EXIT_CODES": "drill_report",
    "Difference": "comparison",
    "DrillError": "errors",
    "DrillPlan": "drill_plan",
    "DrillReport": "drill_report",
    "EXIT_CODES": "diagnosis",
    "FAULTS": "faults",
    "FaultKind": "faults",
    "FaultOutcome": "drill_report",
    "FaultRequest": "fault_callback",
    "InjectedFault": "fault_callback",
    "InjectedFaultError": "errors",
    "Interruption": "interruption",
    "InterruptionError": "errors",
    "KillAfterCheckpoint": "kill",
    "MakeCommand": "drill",
    "MetricDifference": "replay",
    "PlannedFault": "faults",
    "RecordFile": "run_record",
    "RecordPosition": "run_record",
    "RecordRow": "run_record",
    "Recorder": "recorder",
    "RecordingRequest": "environment",
    "RecordingRequestError": "errors",
    "Replay": "replay",
    "ReplayPlan": "replay",
    "ReplayRequestError": "errors",
    "ResumeProof": "diagnosis",
    "RunRecord": "run_record",
    "RunStart": "interruption",
    "StateReader": "recorder",
    "StepResultReader": "step_results",
    "Verdict": "comparison",
    "VerificationError": "errors",
    "callbacks_from_environment": "environment",
    "compare": "comparison",
    "diagnosis_lines": "diagnosis",
    "drill_as_data": "drill_text",
    "drill_as_text": "drill_text",
    "plan_faults": "faults",
    "plan_replay": "replay",
    "proof_as_data": "verdict_text",
    "proof_as_text": "verdict_text",
    "prove": "interruption",
    "read_kinds": "faults",
    "read_record": "run_record",
    "read_torch_state": "torch_state",
    "read_torch_step": "torch_state",
    "record_file_from_environment": "environment",
    "replay_as_data": "replay_text",
    "replay_as_text": "replay_text",
    "run_drill": "drill",
    "run_replay": "replay",
    "run_start_command": "start_command",
    "verdict_as_data": "verdict_text",
    "verdict_as_text": "verdict_text",
    "verdict_table": "verdict_text",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
