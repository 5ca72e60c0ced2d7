"""Training metrics in any loop: loss, throughput and MFU on the console, in JSONL and in TensorBoard.

>>> import io
>>> from mb_metrics import ConsoleSink, Metrics
>>> console = io.StringIO()
>>> with Metrics([ConsoleSink(console)], log_interval=2, total_steps=4) as metrics:
...     for step in range(1, 5):
...         metrics.record(step, {"lm loss": 4.0 / step, "learning-rate": 1e-3}, samples=8, tokens=1024)
>>> "lm loss: 3.000000E+00" in console.getvalue()
True
>>> console.getvalue().count("Step Time : ")
2
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mb_metrics.build import build_sinks as build_sinks
    from mb_metrics.config import LoggerConfig as LoggerConfig
    from mb_metrics.flops import FlopsPerToken as FlopsPerToken
    from mb_metrics.flops import gpt_flops_per_token as gpt_flops_per_token
    from mb_metrics.flops_model import model_flops_per_token as model_flops_per_token
    from mb_metrics.flops_shape import UnknownFlopsError as UnknownFlopsError
    from mb_metrics.metrics import Metrics as Metrics
    from mb_metrics.peaks import peak_tflops as peak_tflops
    from mb_metrics.record import Evaluation as Evaluation
    from mb_metrics.record import Interval as Interval
    from mb_metrics.record import Row as Row
    from mb_metrics.rules import RULES as RULES
    from mb_metrics.rules import Rule as Rule
    from mb_metrics.runtime import report_runtime as report_runtime
    from mb_metrics.sink import Sink as Sink
    from mb_metrics.sink import SinkFailure as SinkFailure
    from mb_metrics.sinks.console import ConsoleSink as ConsoleSink
    from mb_metrics.sinks.jsonl import JsonlSink as JsonlSink
    from mb_metrics.sinks.jsonl import read_jsonl as read_jsonl
    from mb_metrics.sinks.tensorboard import TensorBoardSink as TensorBoardSink
    from mb_metrics.throughput import Rates as Rates
    from mb_metrics.throughput import report_throughput as report_throughput

__all__ = [
    "RULES",
    "ConsoleSink",
    "Evaluation",
    "FlopsPerToken",
    "Interval",
    "JsonlSink",
    "LoggerConfig",
    "Metrics",
    "Rates",
    "Row",
    "Rule",
    "Sink",
    "SinkFailure",
    "TensorBoardSink",
    "build_sinks",
    "gpt_flops_per_token",
    "peak_tflops",
    "read_jsonl",
    "report_runtime",
    "report_throughput",
    "UnknownFlopsError",
    "model_flops_per_token",
]
_HOMES = {
    "RULES": "rules",
    "ConsoleSink": "sinks.console",
    "Evaluation": "record",
    "FlopsPerToken": "flops",
    "Interval": "record",
    "JsonlSink": "sinks.jsonl",
    "LoggerConfig": "config",
    "Metrics": "metrics",
    "Rates": "throughput",
    "Row": "record",
    "Rule": "rules",
    "Sink": "sink",
    "SinkFailure": "sink",
    "TensorBoardSink": "sinks.tensorboard",
    "UnknownFlopsError": "flops_shape",
    "build_sinks": "build",
    "gpt_flops_per_token": "flops",
    "model_flops_per_token": "flops_model",
    "peak_tflops": "peaks",
    "read_jsonl": "sinks.jsonl",
    "report_runtime": "runtime",
    "report_throughput": "throughput",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
