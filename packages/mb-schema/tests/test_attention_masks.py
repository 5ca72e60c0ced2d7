import pytest

from mb_schema.attention_masks import attended_pairs, attended_positions


@pytest.mark.parametrize(
    ("window", "causal", "pairs"),
    [
        (None, True, 32.0),
        (None, False, 64.0),
        ((-1, 0), True, 32.0),
        ((3, 0), True, 4 * 8 - 8.0),
        ((100, 0), True, 32.0),
        ((3, 3), False, 4 * 8 - 8.0 + 3 * 8 - 4.5),
        ((3, -1), False, 4 * 8 - 8.0 + 32.0),
    ],
)
def test_the_area_of_a_mask(window, causal, pairs):
    assert attended_pairs(8, window=window, causal=causal) == pairs


def test_a_long_sequence_has_the_share_of_pairs_that_are_counted_one_by_one():
    length, left = 512, 63
    counted = sum(1 for query in range(length) for key in range(query + 1) if query - key <= left)
    assert attended_pairs(length, window=(left, 0)) == pytest.approx(counted, rel=0.02)


def test_positions_of_different_lengths_are_averaged_over_tokens():
    lengths = {200: 0.9, 2000: 0.1}
    pairs = 0.9 * 200**2 / 2 + 0.1 * (2000 * 512 - 512**2 / 2)
    assert attended_positions(lengths, window=(511, 0)) == pytest.approx(
        pairs / 380
    )  # 282, not 398 of a mean length
    assert attended_positions(lengths) == pytest.approx((0.9 * 200**2 + 0.1 * 2000**2) / 380 / 2)
