"""CUDA_DEVICE_MAX_CONNECTIONS against the table of the launchers, layout by layout."""

from itertools import product

import pytest

from mb_overlap import environment


@pytest.mark.parametrize(
    ("major", "one", "both"), [(8, "1", "1"), (9, "1", "1"), (10, None, "32"), (12, None, "32")]
)
def test_the_value_follows_the_gpu_and_what_communicates(major, one, both):
    for tp, cp, dp, pp in product((1, 2), repeat=4):
        layer, across = tp > 1 or cp > 1, dp > 1 or pp > 1
        expected = (both if across else one) if layer else None
        assert environment(major=major, tp=tp, cp=cp, dp=dp, pp=pp) == expected


@pytest.mark.parametrize("needs_queues", [{"fsdp": True}, {"moe_overlap": True}])
def test_one_queue_is_never_chosen_where_it_would_serialise(needs_queues):
    assert environment(major=9, tp=2, dp=2, **needs_queues) is None
    assert environment(major=10, tp=2, dp=2, **needs_queues) == "32"
