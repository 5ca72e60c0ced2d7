"""Plan with floating-point operations from a function."""

from types import SimpleNamespace

import pytest

from mb_plan import estimate_run

SIZES = {
    "num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 64, "seq_length": 4,
    "ffn_hidden_size": 16,
}  # fmt: skip


def cannot_count(model, *, seq_length, vocab_size):
    raise ValueError("unknown layers")


@pytest.mark.parametrize(
    ("count", "flops", "note"),
    [
        (None, None, "floating-point operations are not counted, because no function for them is installed"),
        (cannot_count, None, "unknown layers"),
        (
            lambda model, *, seq_length, vocab_size: SimpleNamespace(
                total=float(seq_length), parts={"mlp": 4.0}
            ),
            4.0,
            None,
        ),
    ],
    ids=["no function", "not counted", "counted"],
)
def test_operations_are_counted_by_a_function(count, flops, note):
    sections = {"model": SIZES, "train": {"global_batch_size": 2, "micro_batch_size": 1}}
    estimate = estimate_run(sections, world_size=1, vocab_size=64, count_flops=count)
    assert (estimate.flops and estimate.flops.total) == flops
    assert estimate.flops_per_step == (None if flops is None else flops * 2 * 4)
    assert note is None or note in estimate.notes
    assert estimate.to_dict()["flops_per_token"] == (None if flops is None else {"total": 4.0, "mlp": 4.0})
