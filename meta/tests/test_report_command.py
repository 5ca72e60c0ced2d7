"""`mb report` and `mb watch`: the commands of mb-metrics, with the recipe of a run as the baseline."""

import json

import pytest
from typer.testing import CliRunner

from mb_metrics.cli.report import read_configuration
from mb_trainer.cli.app import app
from mb_trainer.commands.baseline import baselines
from mb_trainer.recipes import RECIPES


def mb(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="mb")


def write_start(folder, **fields):
    start = {"event": "start", "time": 1e9, "step": 0, **fields}
    (folder / "events.jsonl").write_text(json.dumps(start) + "\n")


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1e9, "lm loss": 4.0}) + "\n")
    config = RECIPES["gpt_tiny"].build()
    config.train.train_iters = 4
    config.to_yaml(folder / "run_config.yaml")
    write_start(folder, recipe="gpt_tiny")
    return folder


def test_the_commands_of_mb_metrics_are_mounted(run, tmp_path):
    assert "Example: mb watch runs/gpt_tiny" in mb("watch", "--help").stdout
    assert mb("watch", run).stdout.startswith("tiny: no stop recorded\n")
    assert mb("watch", tmp_path / "missing").exit_code == 2


def test_a_report_compares_the_settings_with_the_recipe(run):
    result = mb("report", run)
    assert (result.exit_code, result.stdout) == (0, f"{run / 'report.html'}\n")
    assert "Changed from the recipe gpt_tiny" in (run / "report.html").read_text()


def test_a_report_on_the_metrics_of_a_run_folder_compares_its_settings(run):
    assert mb("report", run / "metrics.jsonl").exit_code == 0
    assert "Changed from the recipe gpt_tiny" in (run / "metrics.report.html").read_text()


def test_the_baseline_of_a_run_is_its_recipe(run):
    found = read_configuration(run, baselines=baselines([run]))
    assert found.baseline == "the recipe gpt_tiny"
    assert found.changes == {"train.train_iters": (300, 4)}
    assert found.settings["model.num_layers"] == 4


@pytest.mark.parametrize("fields", [None, {}, {"recipe": "other"}])
def test_a_run_without_the_name_of_a_recipe_has_no_baseline(run, fields):
    (run / "events.jsonl").unlink()
    if fields is not None:
        write_start(run, **fields)
    assert baselines([run]) == {}
