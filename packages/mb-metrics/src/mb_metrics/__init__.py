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
    from mb_metrics.background import BackgroundSink as BackgroundSink
    from mb_metrics.build import build_reductions as build_reductions
    from mb_metrics.build import build_samplers as build_samplers
    from mb_metrics.build import build_sinks as build_sinks
    from mb_metrics.config import LoggerConfig as LoggerConfig
    from mb_metrics.current_gpu import current_gpu_energy as current_gpu_energy
    from mb_metrics.energy import EnergySampler as EnergySampler
    from mb_metrics.errors import MetricsError as MetricsError
    from mb_metrics.errors import ReportWriteError as ReportWriteError
    from mb_metrics.event_log import EventLog as EventLog
    from mb_metrics.event_log import LastStep as LastStep
    from mb_metrics.event_log import read_event_rows as read_event_rows
    from mb_metrics.event_log import read_last_step as read_last_step
    from mb_metrics.event_log import write_missing_stop as write_missing_stop
    from mb_metrics.event_recorder import EventRecorder as EventRecorder
    from mb_metrics.filter_sink import FilterSink as FilterSink
    from mb_metrics.flops import FlopsPerToken as FlopsPerToken
    from mb_metrics.flops import gpt_flops_per_token as gpt_flops_per_token
    from mb_metrics.flops_model import model_flops_per_token as model_flops_per_token
    from mb_metrics.flops_model_shape import UnknownFlopsError as UnknownFlopsError
    from mb_metrics.gradient_norms import GradientNorms as GradientNorms
    from mb_metrics.gradient_norms import WeightNorms as WeightNorms
    from mb_metrics.gradient_norms import report_l2_norm_grad as report_l2_norm_grad
    from mb_metrics.integrations.accelerate import AccelerateTracker as AccelerateTracker
    from mb_metrics.integrations.lightning import LightningLogger as LightningLogger
    from mb_metrics.integrations.step_logger import StepLogger as StepLogger
    from mb_metrics.integrations.torchtitan import TorchtitanLogger as TorchtitanLogger
    from mb_metrics.integrations.transformers import TransformersCallback as TransformersCallback
    from mb_metrics.logging_setup import configure_logging as configure_logging
    from mb_metrics.megatron_lm_log import training_log as training_log
    from mb_metrics.memory import reduce_max_memory_across_pp_group as reduce_max_memory_across_pp_group
    from mb_metrics.memory import report_memory as report_memory
    from mb_metrics.memory_keys import MEMORY_KEYS as MEMORY_KEYS
    from mb_metrics.memory_report import MemoryReport as MemoryReport
    from mb_metrics.memory_report import build_memory_report as build_memory_report
    from mb_metrics.metrics import Metrics as Metrics
    from mb_metrics.metrics_output import MetricsOutput as MetricsOutput
    from mb_metrics.model_norms import ModelNorms as ModelNorms
    from mb_metrics.moe import expert_metrics as expert_metrics
    from mb_metrics.moe import prediction_metrics as prediction_metrics
    from mb_metrics.names import BRIDGE_ALIASES as BRIDGE_ALIASES
    from mb_metrics.names import mlflow_name as mlflow_name
    from mb_metrics.norms import NormGroups as NormGroups
    from mb_metrics.norms import calc_dtensor_params_l2_norm as calc_dtensor_params_l2_norm
    from mb_metrics.norms import calc_params_l2_norm as calc_params_l2_norm
    from mb_metrics.norms import param_is_not_shared as param_is_not_shared
    from mb_metrics.parse.log import LOG_FORMATS as LOG_FORMATS
    from mb_metrics.parse.log import LogFormatError as LogFormatError
    from mb_metrics.parse.log import ParsedLog as ParsedLog
    from mb_metrics.parse.log import parse_log as parse_log
    from mb_metrics.parse.log import read_log as read_log
    from mb_metrics.peaks import peak_tflops as peak_tflops
    from mb_metrics.profilers import RunProfilers as RunProfilers
    from mb_metrics.profilers import start_profilers as start_profilers
    from mb_metrics.profiling import MemorySnapshot as MemorySnapshot
    from mb_metrics.profiling import NsysRange as NsysRange
    from mb_metrics.profiling import ProfilingCallback as ProfilingCallback
    from mb_metrics.profiling import StepRanges as StepRanges
    from mb_metrics.profiling_config import ProfilingConfig as ProfilingConfig
    from mb_metrics.profiling_config import TensorInspectConfig as TensorInspectConfig
    from mb_metrics.record import Evaluation as Evaluation
    from mb_metrics.record import LogInterval as LogInterval
    from mb_metrics.record import MetricsRow as MetricsRow
    from mb_metrics.redact import hide_secrets as hide_secrets
    from mb_metrics.reductions import (
        logical_and_across_model_parallel_group as logical_and_across_model_parallel_group,
    )
    from mb_metrics.reductions import (
        reduce_max_stat_across_model_parallel_group as reduce_max_stat_across_model_parallel_group,
    )
    from mb_metrics.report.metric_names import MetricNames as MetricNames
    from mb_metrics.report.metric_names import MetricNotRecordedError as MetricNotRecordedError
    from mb_metrics.report.page import ReportTooLargeError as ReportTooLargeError
    from mb_metrics.report.page import report_html as report_html
    from mb_metrics.report.page import write_report as write_report
    from mb_metrics.report.run_history import RunConfiguration as RunConfiguration
    from mb_metrics.report.run_history import RunHistory as RunHistory
    from mb_metrics.report.run_reader import RunNotFoundError as RunNotFoundError
    from mb_metrics.report.run_reader import RunReader as RunReader
    from mb_metrics.report.run_reader import read_run as read_run
    from mb_metrics.report.run_reader import read_run_from_log as read_run_from_log
    from mb_metrics.report.run_settings import BaselineConfiguration as BaselineConfiguration
    from mb_metrics.report.run_settings import compare_configuration as compare_configuration
    from mb_metrics.report.run_statistics import RunStatistics as RunStatistics
    from mb_metrics.report.run_statistics import compute_run_statistics as compute_run_statistics
    from mb_metrics.rules import RULES as RULES
    from mb_metrics.run_events import RunEvent as RunEvent
    from mb_metrics.run_recorders import RunRecorders as RunRecorders
    from mb_metrics.run_recorders import record_run as record_run
    from mb_metrics.run_summary import RunSummary as RunSummary
    from mb_metrics.runtime import report_runtime as report_runtime
    from mb_metrics.samplers import MemorySampler as MemorySampler
    from mb_metrics.sink import FanOutSink as FanOutSink
    from mb_metrics.sink import Sink as Sink
    from mb_metrics.sink import SinkFailure as SinkFailure
    from mb_metrics.sinks.comet import CometSink as CometSink
    from mb_metrics.sinks.console import ConsoleSink as ConsoleSink
    from mb_metrics.sinks.jsonl import JsonlSink as JsonlSink
    from mb_metrics.sinks.jsonl import read_jsonl as read_jsonl
    from mb_metrics.sinks.mlflow import MlflowSink as MlflowSink
    from mb_metrics.sinks.notebook import NotebookSink as NotebookSink
    from mb_metrics.sinks.tensorboard import TensorBoardSink as TensorBoardSink
    from mb_metrics.sinks.wandb import WandbSink as WandbSink
    from mb_metrics.tensor_inspect import TensorInspectError as TensorInspectError
    from mb_metrics.tensor_inspect import TensorInspection as TensorInspection
    from mb_metrics.tensor_inspect import start_tensor_inspection as start_tensor_inspection
    from mb_metrics.throughput import ThroughputRates as ThroughputRates
    from mb_metrics.throughput import report_throughput as report_throughput
    from mb_metrics.torch_profiling import build_profiling as build_profiling
    from mb_metrics.torch_profiling import start_memory_history_recording as start_memory_history_recording
    from mb_metrics.training import build_training_metrics as build_training_metrics
    from mb_metrics.training_metrics import TrainingMetrics as TrainingMetrics
    from mb_metrics.watch import watch_frames as watch_frames
    from mb_metrics.watch import watch_text as watch_text
    from mb_schema.rules import Rule as Rule

_HOMES = {
    "AccelerateTracker": "integrations.accelerate",
    "BRIDGE_ALIASES": "names",
    "BackgroundSink": "background",
    "BaselineConfiguration": "report.run_settings",
    "CometSink": "sinks.comet",
    "ConsoleSink": "sinks.console",
    "EnergySampler": "energy",
    "Evaluation": "record",
    "EventLog": "event_log",
    "EventRecorder": "event_recorder",
    "FanOutSink": "sink",
    "FilterSink": "filter_sink",
    "FlopsPerToken": "flops",
    "GradientNorms": "gradient_norms",
    "JsonlSink": "sinks.jsonl",
    "LOG_FORMATS": "parse.log",
    "LastStep": "event_log",
    "LightningLogger": "integrations.lightning",
    "LogFormatError": "parse.log",
    "LogInterval": "record",
    "LoggerConfig": "config",
    "MEMORY_KEYS": "memory_keys",
    "MemoryReport": "memory_report",
    "MemorySampler": "samplers",
    "MemorySnapshot": "profiling",
    "MetricNames": "report.metric_names",
    "MetricNotRecordedError": "report.metric_names",
    "Metrics": "metrics",
    "MetricsError": "errors",
    "MetricsOutput": "metrics_output",
    "MetricsRow": "record",
    "MlflowSink": "sinks.mlflow",
    "ModelNorms": "model_norms",
    "NormGroups": "norms",
    "NotebookSink": "sinks.notebook",
    "NsysRange": "profiling",
    "ParsedLog": "parse.log",
    "ProfilingCallback": "profiling",
    "ProfilingConfig": "profiling_config",
    "RULES": "rules",
    "ReportTooLargeError": "report.page",
    "ReportWriteError": "errors",
    "Rule": "mb_schema.rules",
    "RunConfiguration": "report.run_history",
    "RunEvent": "run_events",
    "RunHistory": "report.run_history",
    "RunNotFoundError": "report.run_reader",
    "RunProfilers": "profilers",
    "RunReader": "report.run_reader",
    "RunRecorders": "run_recorders",
    "RunStatistics": "report.run_statistics",
    "RunSummary": "run_summary",
    "Sink": "sink",
    "SinkFailure": "sink",
    "StepLogger": "integrations.step_logger",
    "StepRanges": "profiling",
    "TensorBoardSink": "sinks.tensorboard",
    "TensorInspectConfig": "profiling_config",
    "TensorInspectError": "tensor_inspect",
    "TensorInspection": "tensor_inspect",
    "ThroughputRates": "throughput",
    "TorchtitanLogger": "integrations.torchtitan",
    "TrainingMetrics": "training_metrics",
    "TransformersCallback": "integrations.transformers",
    "UnknownFlopsError": "flops_model_shape",
    "WandbSink": "sinks.wandb",
    "WeightNorms": "gradient_norms",
    "build_memory_report": "memory_report",
    "build_profiling": "torch_profiling",
    "build_reductions": "build",
    "build_samplers": "build",
    "build_sinks": "build",
    "build_training_metrics": "training",
    "calc_dtensor_params_l2_norm": "norms",
    "calc_params_l2_norm": "norms",
    "compare_configuration": "report.run_settings",
    "compute_run_statistics": "report.run_statistics",
    "configure_logging": "logging_setup",
    "current_gpu_energy": "current_gpu",
    "expert_metrics": "moe",
    "gpt_flops_per_token": "flops",
    "hide_secrets": "redact",
    "logical_and_across_model_parallel_group": "reductions",
    "mlflow_name": "names",
    "model_flops_per_token": "flops_model",
    "param_is_not_shared": "norms",
    "parse_log": "parse.log",
    "peak_tflops": "peaks",
    "prediction_metrics": "moe",
    "read_event_rows": "event_log",
    "read_jsonl": "sinks.jsonl",
    "read_last_step": "event_log",
    "read_log": "parse.log",
    "read_run": "report.run_reader",
    "read_run_from_log": "report.run_reader",
    "record_run": "run_recorders",
    "reduce_max_memory_across_pp_group": "memory",
    "reduce_max_stat_across_model_parallel_group": "reductions",
    "report_html": "report.page",
    "report_l2_norm_grad": "gradient_norms",
    "report_memory": "memory",
    "report_runtime": "runtime",
    "report_throughput": "throughput",
    "start_memory_history_recording": "torch_profiling",
    "start_profilers": "profilers",
    "start_tensor_inspection": "tensor_inspect",
    "training_log": "megatron_lm_log",
    "watch_frames": "watch",
    "watch_text": "watch",
    "write_missing_stop": "event_log",
    "write_report": "report.page",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
