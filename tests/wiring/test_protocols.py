"""Every implementation, assigned to every consumer's Protocol: drift between islands is a type error here.

mypy --strict checks the assignments; pytest only imports the file, so that it cannot rot.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import mb_checkpoint.rules
import mb_data.rules
import mb_launch.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_resilience.rules
from mb_config import DistributedInitConfig, RNGConfig, RuleLike
from mb_trainer.config import ConfigContainer
from mb_trainer.rules import RULES as TRAINER_RULES

RULES: Iterable[RuleLike] = (
    *mb_checkpoint.rules.RULES,
    *mb_data.rules.RULES,
    *mb_loop.rules.RULES,
    *mb_metrics.rules.RULES,
    *mb_models.rules.RULES,
    *mb_overlap.rules.RULES,
    *mb_resilience.rules.RULES,
    *mb_launch.rules.RULES,
    *TRAINER_RULES,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from mb_checkpoint import CheckpointManager, DefaultCheckpointManager
    from mb_checkpoint.context import RerunStateMachineLike, StateLike, TrainStateLike
    from mb_host.layers import host_block_spec
    from mb_host.t5 import host_t5_spec
    from mb_launch.first_cause import EndedProcess
    from mb_launch.settings import (
        GroupOptions,
        GroupSettings,
        ParallelDegrees,
        ParallelSizes,
        SeedOptions,
        SeedSettings,
    )
    from mb_loop import Checkpointer, RerunMachine, TrainState
    from mb_loop import GlobalState as LoopState
    from mb_loop.bridge_api import StragglerReporter
    from mb_loop.exit_conditions import StopRequested
    from mb_loop.mcore import MegatronRerunMachine, RerunSettings
    from mb_loop.settings import LoopSettings
    from mb_metrics.sinks.console import TextStream
    from mb_models import GPTModelConfig, LayerSpec, T5LayerSpec, T5ModelConfig
    from mb_resilience import (
        AgreedStop,
        FaultToleranceConfig,
        NVRxStragglerMonitor,
        RerunStateMachineConfig,
        SignalWatcher,
        StragglerSwitch,
        StragglerTimer,
    )
    from mb_resilience.agreed_stop import KeyValueStore, Watcher
    from mb_resilience.faults import FaultSettings
    from mb_resilience.flight_recorder import FlightRecorderSettings
    from mb_resilience.straggler import TimerSwitch
    from mb_trainer.checkpointing import Progress, Saves
    from mb_trainer.console import Voice
    from mb_trainer.progress import ProgressLog
    from mb_trainer.state import GlobalState
    from mb_trainer.watching import SectionedSaves

    def _(model: GPTModelConfig) -> ParallelSizes:
        return model

    def _(model: T5ModelConfig) -> ParallelSizes:
        return model

    def _(model: ParallelDegrees) -> ParallelSizes:
        return model

    def _(dist: DistributedInitConfig) -> GroupSettings:
        return dist

    def _(dist: GroupOptions) -> GroupSettings:
        return dist

    def _(rng: RNGConfig) -> SeedSettings:
        return rng

    def _(rng: SeedOptions) -> SeedSettings:
        return rng

    def _(process: ProcessFailure) -> EndedProcess:
        return process

    def _(stop: AgreedStop) -> StopRequested:
        return stop

    def _(saves: Saves) -> Checkpointer:
        return saves

    def _(watched: NVRxStragglerMonitor) -> StopRequested:
        return watched.stop_requested

    def _(timer: StragglerTimer) -> StragglerReporter:
        return timer

    def _(switch: StragglerSwitch) -> TimerSwitch:
        return switch

    def _(state: GlobalState) -> LoopState:
        return state

    def _(config: ConfigContainer) -> LoopSettings:
        return config

    def _(state: GlobalState) -> StateLike:
        return state

    def _(counters: TrainState) -> TrainStateLike:
        return counters

    def _(manager: DefaultCheckpointManager) -> CheckpointManager:
        return manager

    def _(reruns: MegatronRerunMachine) -> RerunMachine:
        return reruns

    def _(reruns: MegatronRerunMachine) -> RerunStateMachineLike:
        return reruns

    def _(section: RerunStateMachineConfig) -> RerunSettings:
        return section

    def _(log: ProgressLog) -> Progress:
        return log

    def _(dist: DistributedInitConfig) -> FlightRecorderSettings:
        return dist

    def _(section: FaultToleranceConfig) -> FaultSettings:
        return section

    def _(store: Store) -> KeyValueStore:
        return store

    def _(saves: SectionedSaves) -> Checkpointer:
        return saves

    def _(watcher: SignalWatcher) -> Watcher:
        return watcher

    def _(voice: Voice) -> TextStream:
        return voice

    def _() -> LayerSpec:
        return host_block_spec

    def _() -> T5LayerSpec:
        return host_t5_spec


def test_rule_ids_are_unique_within_each_section() -> None:
    keys = [(rule.id, rule.fields[0].partition(".")[0]) for rule in RULES]
    assert [key for key in keys if keys.count(key) > 1] == []


def test_every_rule_reads_a_section_of_the_container() -> None:
    sections = {*ConfigContainer.__dataclass_fields__, "facts"}
    assert {path.partition(".")[0] for rule in RULES for path in rule.fields} <= sections
