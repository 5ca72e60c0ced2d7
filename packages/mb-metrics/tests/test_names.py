import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_metrics import BRIDGE_ALIASES, Metrics, mlflow_name
from mb_metrics.names import (
    different_mlflow_names,
    find_grad_norm,
    find_learning_rate,
    find_validation,
    is_averaged,
    is_loss,
    is_training_loss,
    is_validation_loss,
)


@pytest.mark.parametrize(
    ("name", "mlflow"),
    [
        ("a@b/c//d", "a_at_b/c_d"),
        ("lm loss", "lm loss"),
        ("throughput/device/tokens_per_sec", "throughput/device_tokens_per_sec"),
        ("top-k: 5%", "top-k: 5_"),
        ("/a//", "a"),
        ("//", "_"),
        ("", "_"),
        ("a/..", "a/__"),
        ("./a", "_/a"),
        ("..a", "__a"),
        ("a..b/.c", "a..b/.c"),
    ],
)
def test_the_name_rule_of_mlflow(name, mlflow):
    assert mlflow_name(name) == mlflow


@given(st.text(alphabet="ab/@-_. :%", max_size=12))
def test_whatever_the_name_mlflow_takes_it(name):
    written = mlflow_name(name)
    assert re.fullmatch(r"[\w/.\- :]+", written)
    assert posixpath.normpath(written) == written  # MLflow reads a name as a path
    assert not written.startswith(("..", "/"))
    assert written != "."
    assert written.count("/") <= 1
    assert mlflow_name(written) == written


def test_aliases_add_the_historical_names(recorder, clock):
    with Metrics([recorder], log_interval=1, aliases="bridge", flops_per_token=1e12, clock=clock) as metrics:
        clock.now += 1
        metrics.record(1, {"memory/mem-alloc-retries": 3}, tokens=1)
    values = recorder.rows[0].values
    assert {name: values[name] for name in BRIDGE_ALIASES.values()} == {
        "throughput/tflops_per_device": values["throughput/tflops/device"],
        "memory/mem-alloc-retires": 3.0,
    }
    assert recorder.intervals[0].last.values == values


def test_custom_aliases(recorder):
    with Metrics([recorder], aliases={"lm loss": "train/loss"}) as metrics:
        metrics.record(1, {"lm loss": 2.0})
    assert recorder.rows[0].values["train/loss"] == 2.0


def test_unknown_aliases_are_rejected(recorder):
    with pytest.raises(ValueError, match="unknown set of names 'nemo'"):
        Metrics([recorder], aliases="nemo")


TRAINING = ("loss", "lm loss", "train/loss", "train_loss", "training loss", "Loss/train", "train/loss_step")
VALIDATION = ("val/loss", "val_loss", "eval_loss", "eval/loss", "Loss/val", "validation_metrics/loss")


@pytest.mark.parametrize("name", [*TRAINING, "loss_metrics/global_avg_loss"])
def test_usual_names_of_the_training_loss(name):
    assert (is_loss(name), is_training_loss(name), is_validation_loss(name)) == (True, True, False)
    assert find_validation(name, ["accuracy", "val/loss"]) == "val/loss"


@pytest.mark.parametrize("name", VALIDATION)
def test_usual_names_of_the_validation_loss(name):
    assert (is_loss(name), is_training_loss(name), is_validation_loss(name)) == (True, False, True)


@pytest.mark.parametrize("name", ["z_loss", "load_balancing_loss", "mtp_1 loss", "error", "test_loss"])
def test_other_losses_have_names_without_a_group(name):
    assert (is_loss(name), is_training_loss(name), is_validation_loss(name)) == (True, False, False)
    assert find_validation(name, ["val/loss", name]) == name
    assert find_validation(name, ["val/loss"]) is None


RATES = (
    "learning-rate",
    "lr",
    "learning_rate",
    "train/lr",
    "train/learning_rate",
    "lr-AdamW",
    "lr-AdamW/pg1",
)
NORMS = ("grad-norm", "grad_norm", "train/grad_norm", "gradient_norm")


@pytest.mark.parametrize(
    "name", [*RATES, *NORMS, "epoch", "moe/z_loss_layer_0", "memory/loss", "mtp_1_acceptance_rate"]
)
def test_names_that_are_no_loss(name):
    assert not is_loss(name)
    assert not is_averaged(name)


@pytest.mark.parametrize("name", ["accuracy", "kl", "temperature", "ratio", "reward", ""])
def test_other_metrics_are_averaged_and_are_no_losses(name):
    assert (is_loss(name), is_averaged(name)) == (False, True)


SAME = ("acc%", "acc#", "acc(1)", "acc_1_", "reward@1", "reward_at_1", "a/b/c", "a/b_c", "x" * 250, "x" * 251)


def test_two_metrics_are_two_series_of_mlflow():
    """MLflow's own rule: word characters, "/", "." , "-", " " and ":", at most 250 of them."""
    found = different_mlflow_names(SAME, {})
    assert len({*found.values()}) == len(SAME)
    assert all(re.fullmatch(r"[/\w.\- :]{1,250}", name) for name in found.values())
    assert [found[name] for name in ("acc%", "acc(1)", "reward@1", "a/b/c")] == [
        "acc_",
        "acc_1_",
        "reward_at_1",
        "a/b_c",
    ]
    # later steps keep the names of the first ones
    assert different_mlflow_names(reversed(SAME), found) == found


def test_the_learning_rate_and_the_gradient_norm_are_found_by_their_usual_names():
    assert [find_learning_rate(["x", name]) for name in RATES] == list(RATES)
    assert [find_grad_norm(["x", name]) for name in NORMS] == list(NORMS)
    assert find_learning_rate(["lr", "learning-rate"]) == "learning-rate"
    assert (find_learning_rate(["x"]), find_grad_norm([])) == (None, None)
