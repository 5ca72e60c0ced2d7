"""Faults of multi-token prediction: each is there without its correction, and absent with it."""

import pytest

from mb_guard import find_fault
from mb_guard.fault import Settings

FAULT = "mtp-loss-of-microbatches"


@pytest.mark.parametrize("ranks", [1, 2], ids=["microbatches", "replicas"])
def test_the_gradient_does_not_depend_on_microbatches(ranks, run_case):
    assert run_case("case_mtp.py", "cut", None, True, ranks=ranks) == pytest.approx([0] * ranks, abs=1e-5)
    assert run_case("case_mtp.py", "cut", FAULT, True, ranks=ranks)[0] > 0.05


@pytest.mark.parametrize("per_token", [True, False])
def test_the_gradient_does_not_depend_on_context_parallelism(per_token, run_case):
    assert run_case("case_mtp.py", "cut", None, per_token, True, ranks=2) == pytest.approx([0, 0], abs=1e-5)
    assert run_case("case_mtp.py", "cut", FAULT, per_token, True, ranks=2)[0] > 0.05


def test_the_logged_loss_is_a_mean_over_labels(run_case):
    [(cut, whole)] = run_case("case_mtp.py", "logged", None)
    assert cut == pytest.approx(whole, abs=1e-5)
    [(cut, whole)] = run_case("case_mtp.py", "logged", "mtp-logged-loss")
    assert cut != pytest.approx(whole, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_padded_packs_are_rolled_within_their_places(ranks, run_case):
    for found, right in run_case("case_mtp.py", "rolled", None, ranks=ranks):
        assert found == right
    wrong = run_case("case_mtp.py", "rolled", "mtp-rolls-across-padding", ranks=ranks)
    assert any(found != right for found, right in wrong)


def test_deferred_gradients_of_predictions_go_to_the_embedding(run_case):
    assert run_case("case_mtp.py", "deferred", None) == [
        {"output": pytest.approx(0, abs=1e-6), "embedding": 0}
    ]
    [wrong] = run_case("case_mtp.py", "deferred", 1)
    assert wrong["output"] == 1
    assert wrong["embedding"] > 1
    met = find_fault("deferred-gradients-of-predictions").met
    values = {"mtp_num_layers": 1, "defer_embedding_wgrad_compute": True}
    assert [met(Settings({**values, name: None})) for name in ("none", *values)] == [True, False, False]
