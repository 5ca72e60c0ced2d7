"""Faults of datasets."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, around
from mb_guard.faults.rewriting import rewritten


@around
def separate_loss_masks(get: Function, self: Any, idx: int | None) -> Any:
    """Keep a loss mask of ones for later samples, instead of that of the first sample, which may have padding."""
    was_cached = self.masks_and_position_ids_are_cached
    sample = get(self, idx)
    if self.masks_and_position_ids_are_cached and not was_cached:
        # masks are cached only if they do not depend on tokens, so that only padding is not in the loss
        self.cached_loss_mask = self.cached_loss_mask.new_ones(self.cached_loss_mask.shape)
    return sample


def same_epoch_on_all_ranks(iterate: Function) -> Function:
    """End the epoch of all ranks with its last global batch, before its samples are divided among them."""
    return rewritten(
        iterate,
        ("idx_range_total[full_bucket_offset:]", "idx_range_total[full_bucket_offset:active_total_samples]"),
    )


FAULTS = (
    Fault(
        id="cyclic-epochs-of-ranks",
        effect="wrong number",
        summary="--dataloader-type cyclic with --no-data-sharding divides samples beyond the last global batch too, so "
        "that some data-parallel ranks have a longer epoch and read another permutation than the others.",
        shows="Silent: 10 samples on 3 ranks in batches of 2 each: a global batch has a sample twice, and a resumed "
        "run reads other samples.",
        action="put right",
        report="https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5944",
        test="packages/mb-guard/tests/test_datasets.py::test_ranks_read_the_same_epoch",
        met=lambda settings: settings.dataloader_type == "cyclic" and settings.data_sharding is False,
        patches=(
            Patch(
                wrap=same_epoch_on_all_ranks,
                module="megatron.training.datasets.data_samplers",
                target="MegatronPretrainingRandomSampler.__iter__",
                sources=("20bebb213fcc2c77",),
            ),
        ),
    ),
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
