"""Loggers for the user's own code, read back with the tools of their back-ends."""

import json
import sys
from types import SimpleNamespace

import pytest

from mb_metrics import LoggerConfig
from mb_metrics.errors import SectionError
from mb_metrics.trainer_api import open_comet, open_mlflow, open_tensorboard, open_wandb

SETTINGS = {"train": {"lr": 0.1}, "tokenizer": {"hf_token": "hf_very_secret_value"}}


def test_without_their_settings_there_are_none():
    section = LoggerConfig()
    openers = (open_tensorboard, open_wandb, open_mlflow, open_comet)
    assert [opener(section) for opener in openers] == [None, None, None, None]


def test_the_writer_of_tensorboard_writes_to_its_folder(tmp_path):
    pytest.importorskip("torch")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with open_tensorboard(LoggerConfig(tensorboard_dir=str(tmp_path / "tb"))) as writer:
        writer.add_scalar("mine", 2.5, 7)
    events = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("mine")] == [(7, 2.5)]


def test_the_run_of_wandb_is_opened_once_with_masked_settings(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    section = LoggerConfig(wandb_project="gpt", wandb_exp_name="one", wandb_entity="team")
    wandb = open_wandb(section, folder=str(tmp_path), config=SETTINGS)
    try:
        run = wandb.run
        assert (run.project, run.name, run.entity) == ("gpt", "one", "team")
        assert dict(run.config) == {"train.lr": 0.1, "tokenizer.hf_token": "<masked>"}
        assert open_wandb(section, folder=str(tmp_path)).run is run
    finally:
        wandb.finish()
    assert [*tmp_path.glob("wandb/offline-run-*")]


@pytest.fixture
def mlflow_section(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    yield LoggerConfig(
        mlflow_experiment="gpt",
        mlflow_run_name="one",
        mlflow_tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
        mlflow_tags={"team": "a"},
        mlflow_description="short",
    )
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


def test_the_run_of_mlflow_is_opened_once_with_masked_settings(mlflow_section):
    many = {f"value_{number}": number for number in range(150)}  # MLflow takes 100 in a request
    mlflow = open_mlflow(mlflow_section, config={**SETTINGS, "many": many})
    run = mlflow.active_run()
    stored = mlflow.get_run(run.info.run_id)
    assert (stored.info.run_name, stored.data.tags["team"]) == ("one", "a")
    assert stored.data.tags["mlflow.note.content"] == "short"
    assert mlflow.get_experiment(stored.info.experiment_id).name == "gpt"
    assert (stored.data.params["train.lr"], stored.data.params["tokenizer.hf_token"]) == ("0.1", "<masked>")
    assert stored.data.params["many.value_149"] == "149"
    mlflow_section.mlflow_tags = {"team": "b"}
    assert open_mlflow(mlflow_section).active_run().info.run_id == run.info.run_id
    assert mlflow.get_run(run.info.run_id).data.tags["team"] == "b"


class Experiment:
    """Comet's experiment, as far as it is used."""

    def __init__(self, **settings):
        self.calls = [("open", settings)]

    def __getattr__(self, name):
        return lambda value: self.calls.append((name, value))


def test_the_experiment_of_comet_has_name_tags_and_masked_settings(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet_ml", SimpleNamespace(Experiment=Experiment))
    section = LoggerConfig(
        comet_project="gpt", comet_experiment_name="one", comet_workspace="team", comet_tags=["a"]
    )
    assert json.loads(json.dumps(open_comet(section, config=SETTINGS).calls)) == [
        [
            "open",
            {"project_name": "gpt", "workspace": "team", "api_key": None, "auto_metric_logging": False},
        ],
        ["set_name", "one"],
        ["add_tags", ["a"]],
        ["log_parameters", {"train.lr": 0.1, "tokenizer.hf_token": "<masked>"}],
    ]


@pytest.mark.parametrize(
    ("opener", "settings", "field"),
    [
        (open_wandb, {"wandb_project": "gpt", "wandb_exp_name": ""}, "wandb_exp_name"),
        (open_mlflow, {"mlflow_experiment": "gpt", "mlflow_run_name": ""}, "mlflow_run_name"),
        (open_comet, {"comet_project": "gpt", "comet_experiment_name": ""}, "comet_experiment_name"),
    ],
)
def test_a_run_without_a_name_is_an_error(opener, settings, field):
    with pytest.raises(SectionError, match=f"logger.{field}"):
        opener(LoggerConfig(**settings))
