"""Throughput metrics of the trainer: precision of the peak performance that MFU refers to."""

import pytest

from mb_trainer.reading import read_request

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("words", "precision"),
    [([], "float32"), (["model.params_dtype=bfloat16"], "bfloat16"), (["model.fp8=hybrid"], "fp8"),
     (["model.fp4=e2m1"], "fp4")],
)  # fmt: skip
@pytest.mark.parametrize("recipe", ["gpt_tiny", "t5_tiny", "hybrid_tiny", "mimo_tiny"])
def test_mfu_is_a_fraction_of_the_peak_of_the_layers_precision(recipe, words, precision):
    from mb_trainer.measuring import layer_precision

    assert layer_precision(read_request([recipe, *words]).config.model) == precision
