"""Measurements on a GPU: metrics without a host sync, MFU, traces, memory, tensors of Transformer Engine's layers."""

import gzip
import json
import pickle

import pytest
import torch
from on_gpu import BF16, ENGINE, ON_GPU, TEN_STEPS
from runs import metrics, train_here

from mb_metrics import Metrics, peak_tflops
from mb_metrics.names import MFU, TFLOPS_PER_DEVICE

pytestmark = ON_GPU
PEAKS = {"H100 80GB HBM3": 989.4, "H200": 989.4, "B200": 2250.0}
"""Part of a device's name -> dense TFLOP/s in bfloat16."""


class Kept:
    """A sink that keeps rows."""

    def __init__(self):
        self.rows = []

    def write_rows(self, rows):
        self.rows += rows

    def write_interval(self, interval):
        """Keep nothing."""

    def write_evaluation(self, evaluation):
        """Keep nothing."""

    def close(self):
        """Do nothing."""


@pytest.fixture
def no_wait():
    """Raise an error at every synchronization of the host with the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_recording_never_waits_for_the_device(no_wait):
    kept = Kept()
    recorded = Metrics([kept], log_interval=4)
    losses = torch.arange(12, device="cuda", dtype=torch.bfloat16)
    for step in range(1, 13):
        values = {"lm loss": losses[step - 1], "grad-norm": losses[step - 1].float(), "learning-rate": 0.1}
        recorded.record(step, values)
    torch.cuda.set_sync_debug_mode("default")  # close() waits for the values in flight
    recorded.close()
    assert [row.values["lm loss"] for row in kept.rows] == [float(step) for step in range(12)]


@pytest.mark.parametrize("layers", [["model.transformer_impl=local"], pytest.param(BF16, marks=ENGINE)])
def test_mfu_is_above_zero_and_of_this_gpu(overrides, tmp_path, layers):
    train_here([*overrides, *TEN_STEPS, *layers], tmp_path / "run")
    rows = [row for row in metrics(tmp_path / "run") if MFU in row]
    assert rows
    assert all(0 < row[MFU] < 1 and row[TFLOPS_PER_DEVICE] > 0 for row in rows)


def test_the_peak_is_that_of_the_data_sheet():
    name = torch.cuda.get_device_name()
    expected = [peak for part, peak in PEAKS.items() if part in name]
    if not expected:
        pytest.skip(f"{name} is not in the table of this test")
    assert peak_tflops(name, "bfloat16") == pytest.approx(expected[0], rel=1e-3)


@ENGINE
def test_profiles_show_kernels_and_memory(overrides, tmp_path):
    settings = ["profiling.use_pytorch_profiler=true", "profiling.profile_step_start=4"]
    settings += ["profiling.profile_step_end=6", "profiling.nvtx_ranges=true"]
    settings += [
        "profiling.record_memory_history=true",
        f"profiling.memory_snapshot_path={tmp_path}/memory.pickle",
    ]
    train_here([*overrides, *TEN_STEPS, *BF16, *settings], tmp_path / "run")
    with gzip.open(tmp_path / "run" / "torch_profile" / "rank-0.json.gz") as file:
        kinds = {event.get("cat") for event in json.load(file)["traceEvents"]}
    assert {"kernel", "cpu_op"} <= kinds
    (snapshot,) = tmp_path.glob("memory*.pickle")
    assert pickle.loads(snapshot.read_bytes())["segments"]


@ENGINE
def test_tensors_of_transformer_engines_layers_are_looked_at(overrides, tmp_path):
    pytest.importorskip("nvdlfw_inspect", reason="nvdlfw-inspect is not installed")
    statistics = {
        "tensor": "activation",
        "stats": ["mean", "max"],
        "freq": 1,
        "start_step": 0,
        "end_step": 10,
    }
    features = {
        "look": {
            "enabled": True,
            "layers": {"layer_name_regex_pattern": ".*linear_fc1"},
            "transformer_engine": {"LogTensorStats": {"enabled": True, "tensors_struct": [statistics]}},
        }
    }
    (tmp_path / "features.yaml").write_text(json.dumps(features))
    settings = ["tensor_inspect.enabled=true", f"tensor_inspect.features={tmp_path / 'features.yaml'}"]
    train_here(
        [*overrides, *TEN_STEPS, *BF16, *settings, f"tensor_inspect.log_dir={tmp_path}"], tmp_path / "run"
    )
    (log,) = tmp_path.glob("nvdlfw_inspect_statistics_logs/*.log")
    assert "linear_fc1_activation_max" in log.read_text()


def test_memory_is_reported(overrides, tmp_path):
    words = [*overrides, *TEN_STEPS, "model.transformer_impl=local", "logger.log_memory_to_tensorboard=true"]
    train_here(words, tmp_path / "run")
    found = {name for row in metrics(tmp_path / "run") for name in row if name.startswith("memory/")}
    assert found
