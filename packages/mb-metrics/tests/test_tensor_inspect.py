import json
from importlib.util import find_spec

import pytest

from mb_metrics import TensorInspectConfig, TensorInspectError, start_tensor_inspection

FEATURES = {
    "activations": {
        "enabled": True,
        "layers": {"layer_name_regex_pattern": ".*"},
        "LogTensorStats": {"enabled": True, "tensors": ["activation"], "stats": ["max"], "freq": 1},
    }
}


class Tool:
    """Substitute for the tool that stores its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *positional, **named: self.calls.append((name, *positional, named))


def test_off_is_off():
    assert start_tensor_inspection(None) is None
    assert start_tensor_inspection(TensorInspectConfig(features=FEATURES)) is None


def test_the_tool_is_initialized_with_the_settings_and_shut_down_once(tmp_path):
    tool = Tool()
    config = TensorInspectConfig(enabled=True, features=FEATURES)
    inspection = start_tensor_inspection(
        config, save=tmp_path / "run", loaded_step=7, rank=2, tool=lambda: tool
    )
    inspection.on_train_step_end(None)
    inspection.on_train_end(None)
    inspection.on_train_end(None)
    settings = tmp_path / "run" / "tensor_inspect_rank2.yaml"
    assert json.loads(settings.read_text()) == FEATURES
    (begun, given), *rest = tool.calls
    assert begun == "initialize"
    assert given == {
        "config_file": str(settings),
        "feature_dirs": given["feature_dirs"],
        "log_dir": str(tmp_path / "run"),
        "init_training_step": 7,
        "default_logging_enabled": True,
    }
    assert [name for name, *_ in rest] == ["step", "end_debug"]


def test_names_and_the_group_are_set_when_the_model_is_attached(tmp_path):
    tool = Tool()
    config = TensorInspectConfig(
        enabled=True,
        features="features.yaml",
        log_dir=str(tmp_path),
        init_training_step=3,
        feature_dirs=["own"],
        allow_custom_feature_dirs=True,
    )
    inspection = start_tensor_inspection(config, loaded_step=7, tool=lambda: tool)
    inspection.attach([], group="tensor-parallel ranks")
    given = tool.calls[0][1]
    assert (given["config_file"], given["init_training_step"], given["feature_dirs"]) == (
        "features.yaml",
        3,
        ["own"],
    )
    assert tool.calls[1:] == [
        ("infer_and_assign_layer_names", [], {}),
        ("set_tensor_reduction_group", "tensor-parallel ranks", {}),
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"features": FEATURES, "feature_dirs": ["x"]}, "folders of code"),
        ({}, "no features are set"),
    ],
)
def test_invalid_sections_are_rejected(config, message):
    with pytest.raises(TensorInspectError, match=message):
        start_tensor_inspection(TensorInspectConfig(enabled=True, **config), tool=Tool)


@pytest.mark.skipif(find_spec("nvdlfw_inspect") is not None, reason="nvdlfw-inspect is installed")
def test_without_the_tool_the_error_names_the_package():
    with pytest.raises(TensorInspectError, match=r"nvdlfw_inspect is not installed.*mb-metrics\[inspect\]"):
        start_tensor_inspection(TensorInspectConfig(enabled=True, features=FEATURES))


def test_the_tool_logs_statistics_of_a_models_layers(tmp_path):
    pytest.importorskip("nvdlfw_inspect")
    torch = pytest.importorskip("torch")
    config = TensorInspectConfig(enabled=True, features=FEATURES, log_dir=str(tmp_path))
    inspection = start_tensor_inspection(config)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    inspection.attach(model)
    for _ in range(3):
        model(torch.ones(2, 4))
        inspection.step()
    inspection.close()
    model(torch.ones(2, 4))  # is no longer inspected
    logs = "".join(path.read_text() for path in tmp_path.rglob("*statistics*/*") if path.is_file())
    lines = [line for line in logs.splitlines() if "model.1_activation_max" in line]
    assert len(lines) == 3


def test_features_that_the_tool_rejects_are_one_message(tmp_path, monkeypatch):
    class Rejects(Tool):
        def initialize(self, **settings):
            raise AssertionError("Could not find feature 'transformer_engine'")

    monkeypatch.setattr("mb_metrics.profiling.tensor_inspect._transformer_engine_features", lambda: None)
    config = TensorInspectConfig(enabled=True, features={"transformer_engine": {}}, log_dir=str(tmp_path))
    with pytest.raises(TensorInspectError, match=r"rejects them \(Could not .*there is LogTensorStats only"):
        start_tensor_inspection(config, tool=Rejects)
