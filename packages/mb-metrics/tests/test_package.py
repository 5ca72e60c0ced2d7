import subprocess
import sys

import pytest

import mb_metrics

OPTIONAL = {"comet_ml", "mlflow", "tensorboard", "torch", "wandb", "megatron"}
OPTIONAL |= {"accelerate", "lightning", "transformers"}


def missing_for(name):
    """Return the package that a public name needs and that is not installed."""
    try:
        getattr(mb_metrics, name)
    except AttributeError as error:
        return error.__cause__.name.partition(".")[0]
    return None


def test_every_public_name_has_a_home():
    assert {*mb_metrics._HOMES} <= {*dir(mb_metrics)}
    for name in mb_metrics._HOMES:
        assert missing_for(name) in (None, *OPTIONAL)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Metric'"):
        mb_metrics.Metric  # noqa: B018


def test_importing_and_recording_numbers_loads_no_optional_package():
    code = (
        "import sys, mb_metrics\n"
        "from mb_metrics import ConsoleSink, Metrics, LoggerConfig, RULES, build_sinks\n"
        "with Metrics(build_sinks(LoggerConfig())) as metrics: metrics.record(1, {'lm loss': 1.0})\n"
        "print({'torch', 'tensorboard', 'numpy', 'typer', 'rich', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
