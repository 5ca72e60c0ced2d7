import subprocess
import sys


def test_importing_and_recording_numbers_loads_no_optional_package():
    code = (
        "import sys, mb_metrics\n"
        "from mb_metrics import ConsoleSink, Metrics, LoggerConfig, RULES, build_sinks\n"
        "with Metrics(build_sinks(LoggerConfig())) as metrics: metrics.record(1, {'lm loss': 1.0})\n"
        "print({'torch', 'tensorboard', 'numpy', 'typer', 'rich', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
