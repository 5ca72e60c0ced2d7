"""Compute capabilities by name."""

from mb_schema.gpu_capabilities import CAPABILITIES, capability


def test_gpus_by_name():
    assert capability("H100") == CAPABILITIES["h200"] == (9, 0)
    assert capability("tpu") is None
