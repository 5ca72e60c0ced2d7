"""Batch sizes over a run."""

import pytest

from mb_schema.batch_stages import scheduled_stages


def test_a_batch_schedule_with_units_and_without_spaces():
    assert scheduled_stages("0:768, 2.5K:1k 1M:1536") == ((0, 768), (2500, 1000), (1_000_000, 1536))
    assert scheduled_stages("0:4 1K:8", seq_length=256) == ((0, 4), (3, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a list of threshold:size"),
        ("0:4 much:8", "is not a list of threshold:size"),
        ("8:4", "does not begin at threshold 0"),
        ("0:4 20:8 10:16", r"thresholds that do not increase \(\[0, 20, 10\] sequences"),
        ("0:4 100:8 110:16", r"thresholds that do not increase \(\[0, 6, 6\] sequences"),
        ("0:4 100:0", "has a batch of less than 1"),
        ("0:4 100:8.5", r"not whole in '100:8\.5'"),
    ],
)
def test_an_invalid_batch_schedule_is_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        scheduled_stages(text, seq_length=16 if "110" in text else None)
