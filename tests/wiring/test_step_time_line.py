"""CloudAI finds success and speed of a run in the console lines of mb-metrics."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

from mb_launch import extract_mbridge_metrics, was_run_successful
from mb_launch.cloudai.outcome import LAUNCHER_LOG
from mb_metrics import ConsoleSink, Metrics


def test_the_lines_of_the_console_are_found(tmp_path: Path) -> None:
    console = StringIO()
    with Metrics([ConsoleSink(console, format="megatron")], log_interval=2, total_steps=8) as metrics:
        for number in range(1, 9):
            metrics.record(number, {"lm loss": 4.0 / number}, samples=8, tokens=1024)
    assert [len(series) for series in extract_mbridge_metrics(console.getvalue())] == [4, 4]
    (tmp_path / LAUNCHER_LOG).write_text(console.getvalue())
    assert was_run_successful(SimpleNamespace(output_path=tmp_path)).is_successful
