"""Metrics that are recorded as one vector."""

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import Metrics  # noqa: E402


def test_a_vector_is_recorded_under_its_names(recorder):
    loads = torch.tensor([0.25, 0.75])
    with Metrics([recorder], log_interval=1) as metrics:
        metrics.record(1, {"loss": torch.tensor(2.0), ("load/0", "load/1"): loads, "lr": 0.5})
        loads.zero_()  # the values were copied
    recorded = {"loss": 2.0, "load/0": 0.25, "load/1": 0.75, "lr": 0.5}
    assert recorded.items() <= recorder.rows[0].values.items()


@pytest.mark.parametrize(
    ("names", "vector", "error", "message"),
    [
        (("a", "b"), torch.ones(3), ValueError, r"a vector of shape \(3,\) has 2 names"),
        (("a", "a"), torch.ones(2), ValueError, r"2 names, 1 of them different"),
        (("a", "b"), [1.0, 2.0], TypeError, r"the value of 2 names is a list"),
    ],
)
def test_a_vector_without_an_element_for_each_name_is_rejected(recorder, names, vector, error, message):
    with Metrics([recorder]) as metrics, pytest.raises(error, match=message):
        metrics.record(1, {names: vector})
