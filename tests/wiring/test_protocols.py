"""Every implementation, assigned to every consumer's Protocol: drift between islands is a type error here.

mypy --strict checks the assignments; pytest only imports the file, so that it cannot rot.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import mb_checkpoint.rules
import mb_data.rules
import mb_launch.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_resilience.rules
from mb_config import DistributedInitConfig, RNGConfig, Rule, TrainingConfig
from mb_trainer.config import ConfigContainer

RULES: Iterable[Rule] = (
    *mb_checkpoint.rules.RULES,
    *mb_data.rules.RULES,
    *mb_loop.rules.RULES,
    *mb_metrics.rules.RULES,
    *mb_models.rules.RULES,
    *mb_overlap.rules.RULES,
    *mb_resilience.rules.RULES,
    *mb_launch.rules.RULES,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from mb_checkpoint import CheckpointManager, DefaultCheckpointManager, RunCheckpointer
    from mb_checkpoint.context import RerunStateMachineLike, StateLike, TrainStateLike
    from mb_checkpoint.load.run_load import LoadReporter
    from mb_checkpoint.run_checkpointer import RunStateLike
    from mb_checkpoint.state.position_copies import SaveEvent
    from mb_config import DistributedDataParallelConfig, TrainingConfig
    from mb_data import ValidationBatches
    from mb_data.loading.batch_padding import PaddedModel
    from mb_data.run_data import DataCounters
    from mb_host.megatron.families import HOST_LAYERS
    from mb_host.megatron.layers import host_block_spec
    from mb_host.megatron.t5 import host_t5_spec
    from mb_launch import World
    from mb_launch.ranks.failures import EndedProcess
    from mb_launch.settings import (
        GroupOptions,
        GroupSettings,
        ParallelDegrees,
        ParallelSizes,
        SeedOptions,
        SeedSettings,
    )
    from mb_loop import CallbackContext, Checkpointer, LoopState, RerunMachine, StepResult, TrainState
    from mb_loop import GlobalState as LoopGlobalState
    from mb_loop.bridge_api import StragglerReporter
    from mb_loop.evaluation.validation import NamedBatches
    from mb_loop.exits.exit_conditions import StopEvaluation, StopRequested
    from mb_loop.graphs.capture import CudaGraphs
    from mb_loop.graphs.megatron import GraphedModel, GraphLoopSettings, LayerGraphs
    from mb_loop.mcore import MegatronRerunMachine, RerunSettings
    from mb_loop.progress.progress_log import ProgressState
    from mb_loop.progress.progress_recorder import LoggingRank
    from mb_loop.settings import LoopSettings
    from mb_loop.step.attention_logits import LogitSettings
    from mb_metrics import ModelNorms
    from mb_metrics.norms.model import ModuleNorms, Norms
    from mb_metrics.run.logging_setup import RankOutput
    from mb_metrics.run.rank_console import RankConsole
    from mb_metrics.run.sections import (
        LocalModules,
        MeasuredModel,
        MetricsSettings,
        TrainSection,
        WrapperSection,
    )
    from mb_metrics.run.training_context import MetricsContext, TrainCounters, TrainingStep
    from mb_metrics.sinks.console import TextStream
    from mb_models import (
        GPTModelConfig,
        GPTModelProvider,
        LayerSpec,
        MambaModelProvider,
        MimoModelProvider,
        T5LayerSpec,
        T5ModelConfig,
        T5ModelProvider,
    )
    from mb_models.families import ChunkProvider
    from mb_models.gpt.layer_choice import AvailableLayers
    from mb_models.mimo.module_parallelism import ModuleParallelism
    from mb_models.training.setup import TrainingModel
    from mb_overlap.transformer_engine.user_buffers import UserBufferModel
    from mb_resilience import (
        AgreedStop,
        DeadlineWatcher,
        FaultToleranceConfig,
        NVRxStragglerMonitor,
        RerunStateMachineConfig,
        SignalWatcher,
        StopRequests,
        StragglerSwitch,
        StragglerTimer,
    )
    from mb_resilience.faults import FaultSettings
    from mb_resilience.hangs.flight_recorder import FlightRecorderSettings
    from mb_resilience.loop_events import CheckpointContext
    from mb_resilience.monitors import TimeoutSettings
    from mb_resilience.process_group import RankInfo
    from mb_resilience.stops.agreed_stop import Watcher
    from mb_resilience.stops.decision_exchange import KeyValueStore
    from mb_resilience.stops.stop_requests import StopSettings
    from mb_resilience.stragglers.detection import TimerSwitch
    from mb_resilience.stragglers.detectors import StragglerDetectors
    from mb_trainer.run.state import GlobalState

    def _(model: GPTModelConfig) -> ParallelSizes:
        return model

    def _(model: GPTModelConfig) -> PaddedModel:
        return model

    def _(model: T5ModelConfig) -> PaddedModel:
        return model

    def _(batches: ValidationBatches) -> NamedBatches:
        return batches

    def _(model: T5ModelConfig) -> ParallelSizes:
        return model

    def _(model: ParallelDegrees) -> ParallelSizes:
        return model

    def _(counters: TrainState) -> DataCounters:
        return counters

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

    def _(watched: NVRxStragglerMonitor) -> StopRequested:
        return watched.stop_requested

    def _(timer: StragglerTimer) -> StragglerReporter:
        return timer

    def _(switch: StragglerSwitch) -> TimerSwitch:
        return switch

    def _(state: GlobalState) -> LoopGlobalState:
        return state

    def _(config: ConfigContainer) -> LoopSettings:
        return config

    def _(state: GlobalState) -> StateLike:
        return state

    def _(counters: TrainState) -> TrainStateLike:
        return counters

    def _(manager: DefaultCheckpointManager) -> CheckpointManager:
        return manager

    def _(manager: DefaultCheckpointManager) -> LoadReporter:
        return manager

    def _(checkpointer: RunCheckpointer) -> Checkpointer:
        return checkpointer

    def _(state: GlobalState) -> RunStateLike:
        return state

    def _(state: LoopState) -> RunStateLike:
        return state

    def _(context: CallbackContext) -> SaveEvent:
        return context

    def _(reruns: MegatronRerunMachine) -> RerunMachine:
        return reruns

    def _(reruns: MegatronRerunMachine) -> RerunStateMachineLike:
        return reruns

    def _(section: RerunStateMachineConfig) -> RerunSettings:
        return section

    def _(context: CallbackContext) -> MetricsContext:
        return context

    def _(result: StepResult) -> TrainingStep:
        return result

    def _(counters: TrainState) -> TrainCounters:
        return counters

    def _(norms: ModelNorms) -> Norms:
        return norms

    def _(section: TrainingConfig) -> TrainSection:
        return section

    def _(section: DistributedDataParallelConfig) -> WrapperSection:
        return section

    def _(state: GlobalState) -> ProgressState:
        return state

    def _(world: World) -> LoggingRank:
        return world

    def _(config: ConfigContainer) -> MetricsSettings:
        return config

    def _(model: TrainingModel) -> MeasuredModel:
        return model

    def _(modules: ModuleParallelism) -> LocalModules:
        return modules

    def _(model: TrainingModel) -> GraphedModel:
        return model

    def _(section: GPTModelConfig) -> LogitSettings:
        return section

    def _(dist: DistributedInitConfig) -> FlightRecorderSettings:
        return dist

    def _(section: FaultToleranceConfig) -> FaultSettings:
        return section

    def _(store: Store) -> KeyValueStore:
        return store

    def _(context: CallbackContext) -> CheckpointContext:
        return context

    def _(world: World) -> RankInfo:
        return world

    def _(train: TrainingConfig) -> StopSettings:
        return train

    def _(dist: DistributedInitConfig) -> TimeoutSettings:
        return dist

    def _(detectors: StragglerDetectors) -> StopRequested | None:
        return detectors.stop_requested

    def _(stops: StopRequests) -> StopEvaluation:
        return stops.stop_evaluation

    def _(watcher: DeadlineWatcher) -> Watcher:
        return watcher

    def _(watcher: SignalWatcher) -> Watcher:
        return watcher

    def _(output: RankConsole) -> TextStream:
        return output

    def _(output: RankConsole) -> RankOutput:
        return output

    def _() -> LayerSpec:
        return host_block_spec

    def _(available: AvailableLayers) -> AvailableLayers:
        return replace(available, host=HOST_LAYERS)

    def _(model: GPTModelProvider) -> ChunkProvider:
        return model

    def _(model: MambaModelProvider) -> ChunkProvider:
        return model

    def _(model: T5ModelProvider) -> ChunkProvider:
        return model

    def _(model: MimoModelProvider) -> ChunkProvider:
        return model

    def _(norms: ModuleNorms) -> Norms:
        return norms

    def _(config: ConfigContainer) -> GraphLoopSettings:
        return config

    def _(graphs: LayerGraphs) -> CudaGraphs:
        return graphs

    def _(model: GPTModelConfig) -> UserBufferModel:
        return model

    def _() -> T5LayerSpec:
        return host_t5_spec


def test_rule_ids_are_unique_within_each_section() -> None:
    keys = [(rule.id, rule.fields[0].partition(".")[0]) for rule in RULES]
    assert [key for key in keys if keys.count(key) > 1] == []


def test_every_rule_reads_a_section_of_the_container() -> None:
    sections = {*ConfigContainer.__dataclass_fields__, "facts"}
    assert {path.partition(".")[0] for rule in RULES for path in rule.fields} <= sections
