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
    from mb_verify.comparison.diagnosis import EXIT_CODES as EXIT_CODES
    from mb_verify.comparison.diagnosis import ResumeProof as ResumeProof
    from mb_verify.comparison.diagnosis import diagnosis_lines as diagnosis_lines
    from mb_verify.comparison.records import CategoryCount as CategoryCount
    from mb_verify.comparison.records import Difference as Difference
    from mb_verify.comparison.records import Verdict as Verdict
    from mb_verify.comparison.records import compare as compare
    from mb_verify.comparison.verdict_text import proof_as_data as proof_as_data
    from mb_verify.comparison.verdict_text import proof_as_text as proof_as_text
    from mb_verify.comparison.verdict_text import verdict_table as verdict_table
    from mb_verify.drill.fault_callback import FaultRequest as FaultRequest
    from mb_verify.drill.fault_callback import InjectedFault as InjectedFault
    from mb_verify.drill.plan import FAULTS as FAULTS
    from mb_verify.drill.plan import DrillPlan as DrillPlan
    from mb_verify.drill.plan import PlannedFault as PlannedFault
    from mb_verify.drill.plan import plan_faults as plan_faults
    from mb_verify.drill.report import DRILL_EXIT_CODES as DRILL_EXIT_CODES
    from mb_verify.drill.report import DrillReport as DrillReport
    from mb_verify.drill.report import FaultOutcome as FaultOutcome
    from mb_verify.drill.run import run_drill as run_drill
    from mb_verify.drill.text import drill_as_data as drill_as_data
    from mb_verify.drill.text import drill_as_text as drill_as_text
    from mb_verify.record.environment import RecordingRequest as RecordingRequest
    from mb_verify.record.environment import callbacks_from_environment as callbacks_from_environment
    from mb_verify.record.environment import record_file_from_environment as record_file_from_environment
    from mb_verify.record.recorder import Recorder as Recorder
    from mb_verify.record.recorder import StateReader as StateReader
    from mb_verify.record.recorder import StepResultReader as StepResultReader
    from mb_verify.record.run_record import RecordFile as RecordFile
    from mb_verify.record.run_record import RecordPosition as RecordPosition
    from mb_verify.record.run_record import RecordRow as RecordRow
    from mb_verify.record.run_record import RunRecord as RunRecord
    from mb_verify.record.run_record import read_record as read_record
    from mb_verify.record.torch_state import read_torch_state as read_torch_state
    from mb_verify.record.torch_state import read_torch_step as read_torch_step
    from mb_verify.replay.step import MetricDifference as MetricDifference
    from mb_verify.replay.step import Replay as Replay
    from mb_verify.replay.step import ReplayPlan as ReplayPlan
    from mb_verify.replay.step import plan_replay as plan_replay
    from mb_verify.replay.step import run_replay as run_replay
    from mb_verify.replay.text import replay_as_data as replay_as_data
    from mb_verify.replay.text import replay_as_text as replay_as_text
    from mb_verify.resume.interruption import Interruption as Interruption
    from mb_verify.resume.interruption import RunStart as RunStart
    from mb_verify.resume.interruption import prove as prove
    from mb_verify.resume.kill import KillAfterCheckpoint as KillAfterCheckpoint
    from mb_verify.resume.start_command import run_start_command as run_start_command

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
