"""Faults of rotary positions: each is there without its correction, and absent with it."""

import math

import pytest


def yarn(width):
    """Return YaRN's angles per token as its paper defines them, for the settings of `case_rotary.py`."""
    scaling, trained, fast, slow, base = 8.0, 64, 4.0, 1.0, 10000.0
    turns = lambda count: width * math.log(trained / (count * 2 * math.pi)) / (2 * math.log(base))  # noqa: E731
    low, high = max(math.floor(turns(fast)), 0), min(math.ceil(turns(slow)), width - 1)
    found = []
    for pair in range(width // 2):
        angle = base ** (-2 * pair / width)
        interpolated = min(max((pair - low) / (high - low), 0), 1)
        found.append(angle * (1 - interpolated) + angle / scaling * interpolated)
    return found


@pytest.mark.parametrize(("share", "width"), [(1.0, 16), (0.5, 8), (0.25, 4)])
def test_yarn_rotates_a_part_of_each_head(share, width, run_case):
    [found] = run_case("case_rotary.py", "frequencies", None, 16, share)
    assert found == pytest.approx(yarn(width), rel=1e-5)
    [wrong] = run_case("case_rotary.py", "frequencies", "yarn-rotates-whole-heads", 16, share)
    assert wrong == pytest.approx(yarn(16), rel=1e-5)


def test_fused_rotation_of_packs_has_the_factor(run_case):
    assert run_case("case_rotary.py", "packed", None) == pytest.approx([0], abs=1e-5)
    assert run_case("case_rotary.py", "packed", "yarn-factor-lost-in-fusion")[0] > 0.3


def test_queries_and_keys_that_one_kernel_rotates_have_the_factor(run_case):
    assert run_case("case_rotary.py", "in_one_kernel", None) == pytest.approx([0], abs=1e-5)
    assert run_case("case_rotary.py", "in_one_kernel", "yarn-factor-lost-in-fusion")[0] > 1e-3


def test_a_pack_with_an_empty_sequence_is_rotated(run_case):
    from mb_host import RankFailedError

    assert run_case("case_rotary.py", "padded", None) == pytest.approx([0], abs=1e-6)
    with pytest.raises(RankFailedError, match="cannot reshape tensor of 0 elements"):
        run_case("case_rotary.py", "padded", "empty-sequence-not-rotated")
