"""Faults of datasets."""

import functools
from typing import Any

from mb_guard.fault import Fault, Function, Patch


def separate_loss_masks(get: Function) -> Function:
    """Keep a loss mask of ones for later samples, instead of that of the first sample, which may have padding."""

    @functools.wraps(get)
    def patched(self: Any, idx: int | None) -> Any:
        was_cached = self.masks_and_position_ids_are_cached
        sample = get(self, idx)
        if self.masks_and_position_ids_are_cached and not was_cached:
            # masks are cached only if they do not depend on tokens, so that only padding is not in the loss
            self.cached_loss_mask = self.cached_loss_mask.new_ones(self.cached_loss_mask.shape)
        return sample

    return patched


FAULTS = (
    Fault(
        id="cached-loss-mask",
        effect="wrong number",
        summary="With drop_last_partial_validation_sequence=False, GPTDataset keeps the loss mask of the first sample "
        "that a process reads; if that is the partial sequence, all others lose the tokens that it does not have.",
        shows="Silent. Seven validation sequences of 64 tokens, one with 5: read after it, each has 5 tokens in the "
        "loss instead of 64. Every rank and every data worker has its own order.",
        action="put right",
        test="packages/mb-guard/tests/test_datasets.py::test_padding_of_a_partial_sequence_masks_no_other",
        report="https://github.com/NVIDIA/Megatron-LM/issues/1711",
        patches=(
            Patch(
                wrap=separate_loss_masks,
                module="megatron.core.datasets.gpt_dataset",
                target="GPTDataset.__getitem__",
                sources=("c0d54a7dfdff35a5",),
            ),
        ),
    ),
)
