"""Faults of losses: cross entropy over a vocabulary that is split over tensor-parallel ranks, and what is logged."""

import functools
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_REPORT = "https://github.com/NVIDIA/Megatron-LM/issues/7452"


def smooth_over_the_whole_vocabulary(cross_entropy: Function) -> Function:
    """Average the smoothing term over the vocabulary of all ranks, which each rank averages over its own part.

    With alpha = label_smoothing and K = size of the vocabulary, the loss is (1 - s) * CE + s * mean_k(-log p_k), where
    s = alpha * K / (K - 1), as the comment in Megatron's function states.
    """
    import torch

    known = cross_entropy.__globals__

    @functools.wraps(cross_entropy)
    def patched(
        vocab_parallel_logits: Any,
        target: Any,
        label_smoothing: float = 0.0,
        tp_group: Any = None,
    ) -> Any:
        if label_smoothing == 0:
            return cross_entropy(vocab_parallel_logits, target, label_smoothing, tp_group)
        group = tp_group or known["get_tensor_model_parallel_group"]()
        if group.size() == 1:
            return cross_entropy(vocab_parallel_logits, target, label_smoothing, tp_group)
        from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region

        part = vocab_parallel_logits.size(-1)
        size = part * group.size()
        local = target - group.rank() * part
        inside = (local >= 0) & (local < part)
        logits = vocab_parallel_logits.float()
        chosen = torch.where(
            inside,
            logits.gather(-1, local.clamp(0, part - 1).unsqueeze(-1)).squeeze(-1),
            logits.new_zeros(()),
        )
        # both sums in one message; their backward passes are the identity
        sums = reduce_from_tensor_model_parallel_region(
            torch.stack([chosen, logits.sum(-1)]).clone(), group=group
        )
        # the function shifts its argument in place
        loss = cross_entropy(logits.clone(), target, 0.0, tp_group)
        log_normalizer = loss + sums[0]
        smoothing = label_smoothing * size / (size - 1)
        return (1 - smoothing) * loss + smoothing * (log_normalizer - sums[1] / size)

    return patched


@around
def split_gathered_logits(
    compute_loss: Function, self: Any, labels: Any, logits: Any, *args: Any, **kwargs: Any
) -> Any:
    """Split logits that the output layer has gathered, which the loss takes for the part of this rank."""
    from megatron.core.tensor_parallel.mappings import scatter_to_tensor_model_parallel_region

    group = self.pg_collection.tp
    if group.size() > 1 and logits.size(-1) == getattr(self, "vocab_size", None):
        logits = scatter_to_tensor_model_parallel_region(logits, group=group)
    return compute_loss(self, labels, logits, *args, **kwargs)


@around
def exact_gradient(fused: Function, vocab_parallel_logits: Any, target: Any, tp_group: Any) -> Any:
    """Compute the loss of logits that are not bfloat16 without the fusion, which rounds their gradient to it."""
    import torch
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    if vocab_parallel_logits.dtype == torch.bfloat16:
        return fused(vocab_parallel_logits, target, tp_group)
    return vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group=tp_group)


def scaled_copies(calculate: Function) -> Function:
    """Scale a copy of the loss of a microbatch, because what is logged may share its memory."""
    return rewritten(
        calculate,
        (
            f"output_tensor /= torch.clamp(num_tokens, min=1)\n{' ' * 20}output_tensor /= num_microbatches",
            "output_tensor = output_tensor / torch.clamp(num_tokens, min=1) / num_microbatches",
        ),
        (
            f"output_tensor *= cp_group_size\n{' ' * 16}output_tensor /= num_microbatches",
            "output_tensor = output_tensor * cp_group_size / num_microbatches",
        ),
    )


def _tensor_parallel(settings: Settings) -> bool:
    return (settings.tensor_model_parallel_size or 1) > 1


FAULTS = (
    Fault(
        id="label-smoothing-of-a-part",
        effect="wrong number",
        summary="vocab_parallel_cross_entropy with label smoothing averages over the vocabulary of one tensor-parallel "
        "rank instead of all.",
        shows="Silent: with a tensor-parallel size of 2 the loss differs between the ranks, and from that of one rank.",
        action="put right",
        test="packages/mb-guard/tests/test_losses.py::test_label_smoothing_covers_the_vocabulary_of_all_ranks",
        report="https://github.com/NVIDIA/Megatron-LM/issues/737",
        met=lambda settings: _tensor_parallel(settings) and bool(settings.label_smoothing),
        patches=(
            Patch(
                wrap=smooth_over_the_whole_vocabulary,
                module="megatron.core.tensor_parallel.cross_entropy",
                target="vocab_parallel_cross_entropy",
                sources=("bacbac62e7b8e9c1",),
            ),
        ),
    ),
    Fault(
        id="gathered-logits",
        effect="wrong number",
        summary="A model with parallel_output=False and labels computes the loss of gathered logits as if they were "
        "the part of one tensor-parallel rank.",
        shows="Silent: the loss is too large by the logarithm of the tensor-parallel size, and gradients are wrong.",
        action="put right",
        test="packages/mb-guard/tests/test_losses.py::test_gathered_logits_have_the_loss_of_one_rank",
        report=_REPORT,
        patches=(
            Patch(
                wrap=split_gathered_logits,
                module="megatron.core.models.common.language_module.language_module",
                target="LanguageModule.compute_language_model_loss",
                sources=("bfe47db9c6a053a3",),
            ),
        ),
    ),
    Fault(
        id="fused-loss-rounds-its-gradient",
        effect="wrong number",
        summary="cross_entropy_loss_fusion with cross_entropy_fusion_impl=native rounds the gradient of the logits to "
        "bfloat16, whatever their type.",
        shows="Silent: a float32 model has a gradient norm that differs in the fourth digit, and a float16 model three "
        "bits less in each gradient.",
        action="put right",
        test="packages/mb-guard/tests/test_losses.py::test_the_fused_loss_has_an_exact_gradient",
        met=lambda settings: (
            bool(settings.cross_entropy_loss_fusion)
            and settings.cross_entropy_fusion_impl in (None, "native")
            and not settings.bf16
        ),
        patches=(
            Patch(
                wrap=exact_gradient,
                module="megatron.core.fusions.fused_cross_entropy",
                target="fused_vocab_parallel_cross_entropy",
                sources=("cb1c6efa40f2b2ea",),
            ),
        ),
    ),
    Fault(
        id="logged-loss-rescaled",
        effect="wrong number",
        summary="Megatron divides the loss of a microbatch in place by microbatches and tokens: a loss function that "
        "returns loss.detach() to be logged, which shares its memory, logs the divided loss.",
        shows="Silent; gradients are right. With 8 microbatches the logged loss is an eighth.",
        action="put right",
        test="packages/mb-guard/tests/test_losses.py::test_what_is_logged_is_not_rescaled",
        report="https://github.com/AMD-AGI/Primus/pull/1079",
        patches=(
            Patch(
                wrap=scaled_copies,
                module="megatron.core.pipeline_parallel.schedules",
                target="forward_step_calc_loss",
                sources=("21c1cab8a4c55482",),
            ),
        ),
    ),
)
