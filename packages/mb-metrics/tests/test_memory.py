import pytest

torch = pytest.importorskip("torch")

from mb_metrics import MemorySampler, report_memory  # noqa: E402
from mb_metrics.recorder.memory import (  # noqa: E402
    activation_bytes,
    device_memory_used,
    memory_line,
    theoretical_memory_line,
    weight_and_optimizer_bytes,
)

STATS = {
    "allocated_bytes.all.current": 12_345_678_901,
    "allocated_bytes.all.peak": 987_654,
    "reserved_bytes.all.current": 0,
    "num_alloc_retries": 3,
    "segment.all.current": 7,
}


def test_bytes_are_gigabytes_with_five_digits_and_counts_are_counts():
    assert report_memory(stats=STATS) == {
        "mem-allocated-gigabytes": 12.346,
        "mem-reserved-gigabytes": 0.0,
        "mem-max-allocated-gigabytes": 0.00098765,
        "mem-alloc-retries": 3,
    }


def test_custom_keys_replace_the_table_and_unknown_ones_are_omitted():
    keys = {"segment.all.current": "segments", "allocated_bytes.all.peak": "peak-bytes", "gone": "gone"}
    assert report_memory(keys, stats=STATS) == {"segments": 7, "peak-gigabytes": 0.00098765}


def test_without_a_gpu_there_is_no_report():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert report_memory() == {}
    assert device_memory_used() == {}


def test_weights_gradients_and_adams_state_are_counted_as_they_are_stored():
    half = torch.nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))
    single = torch.nn.Parameter(torch.zeros(10))
    frozen = torch.zeros(10, dtype=torch.bfloat16)
    assert weight_and_optimizer_bytes([half]) == 10 * 18
    assert weight_and_optimizer_bytes([half], optimizer_shards=4) == 10 * (6 + 12 / 4)
    assert weight_and_optimizer_bytes([half], gradient_bytes=2) == 10 * 16
    assert weight_and_optimizer_bytes([single]) == 10 * 16
    assert weight_and_optimizer_bytes([frozen]) == 10 * 2


SPLIT = {
    "num_layers": 8,
    "hidden_size": 64,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4,
    "sequence_parallel": True,
    "recompute_granularity": "selective",
}


def test_activations_of_the_first_stage_are_those_of_all_layers_once():
    # L/p layers a stage, p microbatches in flight: 34 s b h L / t.
    assert activation_bytes(SPLIT, seq_length=32, micro_batch_size=2) == 34 * 32 * 2 * 64 * 8 / 2
    gated = activation_bytes(SPLIT | {"gated_linear_unit": True}, seq_length=32, micro_batch_size=2)
    assert gated == 42 * 32 * 2 * 64 * 8 / 2
    fewer = activation_bytes(SPLIT, seq_length=32, micro_batch_size=2, num_microbatches=1)
    assert fewer == 34 * 32 * 2 * 64 * 2 / 2
    chunks = activation_bytes(
        SPLIT | {"virtual_pipeline_model_parallel_size": 2}, seq_length=32, micro_batch_size=2
    )
    assert chunks == 34 * 32 * 2 * 64 * 8 / 2 * (1 + 3 / 8)


@pytest.mark.parametrize(
    "change", [{"sequence_parallel": False}, {"recompute_granularity": "full"}, {"num_moe_experts": 4}]
)
def test_activations_are_not_guessed(change):
    assert activation_bytes(SPLIT | change, seq_length=32, micro_batch_size=2) is None


def test_the_lines_are_megatrons():
    assert theoretical_memory_line(weights=3 * 2**20, activations=None) == (
        "Theoretical memory footprints: weight and optimizer=3.00 MB"
    )
    assert theoretical_memory_line(weights=3 * 2**20, activations=2**19) == (
        "Theoretical memory footprints: weight and optimizer=3.00 MB, activation=0.50 MB, total=3.50 MB"
    )
    assert memory_line({"mem-allocated-gigabytes": 1.5, "mem-alloc-retries": 0}, rank=2, steps=10) == (
        "[Rank 2] (after 10 iterations) memory (GB) | mem-allocated-gigabytes: 1.5 | mem-alloc-retries: 0"
    )


def test_a_sampler_without_a_gpu_warns_once(monkeypatch, caplog):
    monkeypatch.setattr("mb_metrics.recorder.memory.report_memory", lambda keys: {})
    sampler = MemorySampler()
    assert (sampler(1), sampler(2)) == ({}, {})
    assert [record.message for record in caplog.records] == [
        "memory metrics: there are none, because PyTorch finds no GPU in this process or none of the requested "
        "statistics. Leave out log_memory_to_tensorboard and log_device_memory_used on such a machine."
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"allocator": False}, "leave nothing to sample"), ({"every": 0}, "every=0 is not a number of steps")],
)
def test_a_sampler_that_would_sample_nothing_is_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        MemorySampler(**settings)
