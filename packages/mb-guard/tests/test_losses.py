"""Losses over a split vocabulary; the right values are those of torch's cross entropy over all of it."""

import pytest

CASE = "case_losses.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_label_smoothing_covers_the_vocabulary_of_all_ranks(ranks, run_case):
    [(losses, gradient)] = run_case(CASE, "reference", 0.1)
    for found_losses, found_gradient in run_case(CASE, "smoothed", None, ranks=ranks):
        assert found_losses == pytest.approx(losses, rel=1e-5)
        assert found_gradient == pytest.approx(gradient, rel=1e-4, abs=1e-6)


def test_without_the_guard_label_smoothing_covers_a_part(run_case):
    first, last = run_case(CASE, "smoothed", "label-smoothing-of-a-part", ranks=2)
    assert first[0] != pytest.approx(last[0], rel=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_gathered_logits_have_the_loss_of_one_rank(ranks, run_case):
    [(losses, gradient)] = run_case(CASE, "reference", 0.0)
    for found_losses, found_gradient in run_case(CASE, "gathered", None, ranks=ranks):
        assert found_losses == pytest.approx(losses, rel=1e-5)
        assert found_gradient == pytest.approx(gradient, rel=1e-4, abs=1e-6)


def test_without_the_guard_gathered_logits_count_twice(run_case):
    import math

    [(losses, _)] = run_case(CASE, "reference", 0.0)
    for found, _ in run_case(CASE, "gathered", "gathered-logits", ranks=2):
        assert found == pytest.approx([loss + math.log(2) for loss in losses], rel=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fused_loss_has_an_exact_gradient(ranks, run_case):
    [(losses, gradient)] = run_case(CASE, "reference", 0.0)
    for found_losses, found_gradient in run_case(CASE, "fused", None, ranks=ranks):
        assert found_losses == pytest.approx(losses, rel=1e-5)
        assert found_gradient == pytest.approx(gradient, rel=1e-5, abs=1e-7)


def test_without_the_guard_the_fused_loss_has_a_gradient_of_three_digits(run_case):
    [(_, gradient)] = run_case(CASE, "reference", 0.0)
    [(_, found)] = run_case(CASE, "fused", "fused-loss-rounds-its-gradient")
    assert found == pytest.approx(gradient, rel=2**-8)
    assert found != pytest.approx(gradient, rel=2**-12)


@pytest.mark.parametrize(("with_tokens", "divided"), [(False, 6 / 8), (True, 6 / 3 / 8)])
def test_what_is_logged_is_not_rescaled(with_tokens, divided, run_case):
    assert run_case(CASE, "logged", None, with_tokens) == [(6, pytest.approx(divided))]
    wrong = run_case(CASE, "logged", "logged-loss-rescaled", with_tokens)
    assert wrong == [(pytest.approx(divided), pytest.approx(divided))]
