"""Training metrics for any training loop: one record per step, any number of sinks, no device synchronization.

>>> import io
>>> from mb_metrics import ConsoleSink, Metrics
>>> console = io.StringIO()
>>> with Metrics([ConsoleSink(console)], log_interval=2, total_steps=4) as metrics:
...     for step in range(1, 5):
...         metrics.record(step, {"lm loss": 4.0 / step, "learning-rate": 1e-3}, samples=8, tokens=1024)
>>> print(console.getvalue())  # doctest: +ELLIPSIS
step 2/4 | lm loss 3 | learning-rate 0.001 | ...s/step | ... tok/s | ... left
step 4/4 | lm loss 1.167 | learning-rate 0.001 | ...s/step | ... tok/s | 0 s left
<BLANKLINE>
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_metrics.config import LoggerConfig as LoggerConfig
    from mb_metrics.errors import MetricsError as MetricsError
    from mb_metrics.errors import ReportWriteError as ReportWriteError
    from mb_metrics.flops.model import gpt_flops_per_token as gpt_flops_per_token
    from mb_metrics.flops.model import model_flops_per_token as model_flops_per_token
    from mb_metrics.flops.model_shape import UnknownFlopsError as UnknownFlopsError
    from mb_metrics.flops.peaks import peak_tflops as peak_tflops
    from mb_metrics.flops.per_token import FlopsPerToken as FlopsPerToken
    from mb_metrics.integrations.accelerate import AccelerateTracker as AccelerateTracker
    from mb_metrics.integrations.lightning import LightningLogger as LightningLogger
    from mb_metrics.integrations.step_logger import StepLogger as StepLogger
    from mb_metrics.integrations.torchtitan import TorchtitanLogger as TorchtitanLogger
    from mb_metrics.integrations.transformers import TransformersCallback as TransformersCallback
    from mb_metrics.names import BRIDGE_ALIASES as BRIDGE_ALIASES
    from mb_metrics.names import MEMORY_KEYS as MEMORY_KEYS
    from mb_metrics.names import mlflow_name as mlflow_name
    from mb_metrics.norms.gradients import GradientNorms as GradientNorms
    from mb_metrics.norms.gradients import WeightNorms as WeightNorms
    from mb_metrics.norms.gradients import report_l2_norm_grad as report_l2_norm_grad
    from mb_metrics.norms.model import ModelNorms as ModelNorms
    from mb_metrics.norms.parameters import NormGroups as NormGroups
    from mb_metrics.norms.parameters import calc_dtensor_params_l2_norm as calc_dtensor_params_l2_norm
    from mb_metrics.norms.parameters import calc_params_l2_norm as calc_params_l2_norm
    from mb_metrics.norms.parameters import param_is_not_shared as param_is_not_shared
    from mb_metrics.parse.log import LOG_FORMATS as LOG_FORMATS
    from mb_metrics.parse.log import LogFormatError as LogFormatError
    from mb_metrics.parse.log import ParsedLog as ParsedLog
    from mb_metrics.parse.log import parse_log as parse_log
    from mb_metrics.parse.log import read_log as read_log
    from mb_metrics.profiling.config import ProfilingConfig as ProfilingConfig
    from mb_metrics.profiling.config import TensorInspectConfig as TensorInspectConfig
    from mb_metrics.profiling.tensor_inspect import TensorInspectError as TensorInspectError
    from mb_metrics.profiling.tensor_inspect import TensorInspection as TensorInspection
    from mb_metrics.profiling.tensor_inspect import start_tensor_inspection as start_tensor_inspection
    from mb_metrics.profiling.torch_profilers import RunProfilers as RunProfilers
    from mb_metrics.profiling.torch_profilers import build_profiling as build_profiling
    from mb_metrics.profiling.torch_profilers import (
        start_memory_history_recording as start_memory_history_recording,
    )
    from mb_metrics.profiling.torch_profilers import start_profilers as start_profilers
    from mb_metrics.profiling.window import MemorySnapshot as MemorySnapshot
    from mb_metrics.profiling.window import NsysRange as NsysRange
    from mb_metrics.profiling.window import ProfilingCallback as ProfilingCallback
    from mb_metrics.profiling.window import StepRanges as StepRanges
    from mb_metrics.recorder.auxiliary_losses import expert_metrics as expert_metrics
    from mb_metrics.recorder.auxiliary_losses import prediction_metrics as prediction_metrics
    from mb_metrics.recorder.bridge_api import report_runtime as report_runtime
    from mb_metrics.recorder.bridge_api import report_throughput as report_throughput
    from mb_metrics.recorder.current_gpu import current_gpu_energy as current_gpu_energy
    from mb_metrics.recorder.energy import EnergySampler as EnergySampler
    from mb_metrics.recorder.memory import (
        reduce_max_memory_across_pp_group as reduce_max_memory_across_pp_group,
    )
    from mb_metrics.recorder.memory import report_memory as report_memory
    from mb_metrics.recorder.memory_sampler import MemorySampler as MemorySampler
    from mb_metrics.recorder.metrics import Metrics as Metrics
    from mb_metrics.recorder.record import Evaluation as Evaluation
    from mb_metrics.recorder.record import LogInterval as LogInterval
    from mb_metrics.recorder.record import MetricsRow as MetricsRow
    from mb_metrics.recorder.record import ThroughputRates as ThroughputRates
    from mb_metrics.recorder.reductions import (
        logical_and_across_model_parallel_group as logical_and_across_model_parallel_group,
    )
    from mb_metrics.recorder.reductions import (
        reduce_max_stat_across_model_parallel_group as reduce_max_stat_across_model_parallel_group,
    )
    from mb_metrics.redact import hide_secrets as hide_secrets
    from mb_metrics.report.incremental_statistics import compute_run_statistics as compute_run_statistics
    from mb_metrics.report.metric_names import MetricNames as MetricNames
    from mb_metrics.report.metric_names import MetricNotRecordedError as MetricNotRecordedError
    from mb_metrics.report.page import ReportTooLargeError as ReportTooLargeError
    from mb_metrics.report.page import report_html as report_html
    from mb_metrics.report.page import write_report as write_report
    from mb_metrics.report.run_history import RunHistory as RunHistory
    from mb_metrics.report.run_reader import RunNotFoundError as RunNotFoundError
    from mb_metrics.report.run_reader import RunReader as RunReader
    from mb_metrics.report.run_reader import read_run as read_run
    from mb_metrics.report.run_reader import read_run_from_log as read_run_from_log
    from mb_metrics.report.run_settings import BaselineConfiguration as BaselineConfiguration
    from mb_metrics.report.run_settings import RunConfiguration as RunConfiguration
    from mb_metrics.report.run_settings import compare_configuration as compare_configuration
    from mb_metrics.report.run_statistics import RunStatistics as RunStatistics
    from mb_metrics.report.watch import watch_frames as watch_frames
    from mb_metrics.report.watch import watch_text as watch_text
    from mb_metrics.rules import RULES as RULES
    from mb_metrics.run.event_recorder import EventRecorder as EventRecorder
    from mb_metrics.run.events import EventLog as EventLog
    from mb_metrics.run.events import LastStep as LastStep
    from mb_metrics.run.events import RunEvent as RunEvent
    from mb_metrics.run.events import read_event_rows as read_event_rows
    from mb_metrics.run.events import read_last_step as read_last_step
    from mb_metrics.run.events import write_missing_stop as write_missing_stop
    from mb_metrics.run.logging_setup import configure_logging as configure_logging
    from mb_metrics.run.megatron_lm_log import training_log as training_log
    from mb_metrics.run.memory_report import MemoryReport as MemoryReport
    from mb_metrics.run.memory_report import build_memory_report as build_memory_report
    from mb_metrics.run.recorders import MetricsOutput as MetricsOutput
    from mb_metrics.run.recorders import RunRecorders as RunRecorders
    from mb_metrics.run.recorders import build_training_metrics as build_training_metrics
    from mb_metrics.run.recorders import record_run as record_run
    from mb_metrics.run.summary import RunSummary as RunSummary
    from mb_metrics.run.training_metrics import TrainingMetrics as TrainingMetrics
    from mb_metrics.sinks.background import BackgroundSink as BackgroundSink
    from mb_metrics.sinks.build import build_reductions as build_reductions
    from mb_metrics.sinks.build import build_samplers as build_samplers
    from mb_metrics.sinks.build import build_sinks as build_sinks
    from mb_metrics.sinks.comet import CometSink as CometSink
    from mb_metrics.sinks.console import ConsoleSink as ConsoleSink
    from mb_metrics.sinks.jsonl import JsonlSink as JsonlSink
    from mb_metrics.sinks.jsonl import read_jsonl as read_jsonl
    from mb_metrics.sinks.mlflow import MlflowSink as MlflowSink
    from mb_metrics.sinks.notebook import NotebookSink as NotebookSink
    from mb_metrics.sinks.sink import FanOutSink as FanOutSink
    from mb_metrics.sinks.sink import FilterSink as FilterSink
    from mb_metrics.sinks.sink import Sink as Sink
    from mb_metrics.sinks.sink import SinkFailure as SinkFailure
    from mb_metrics.sinks.tensorboard import TensorBoardSink as TensorBoardSink
    from mb_metrics.sinks.wandb import WandbSink as WandbSink
    from mb_schema.rules import Rule as Rule

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
