"""Faults of multi-token prediction: the scale of its loss, and the loss that is logged."""

import copy
from typing import Any

from mb_guard.fault import Fault, Function, Patch, around
from mb_guard.faults.rewriting import rewritten
from mb_guard.faults.step_tokens import COUNT_TOKENS_FIRST, current_step

_MODULE = "megatron.core.transformer.multi_token_prediction"
_TESTS = "packages/mb-guard/tests/test_mtp.py"


def average_over_the_step(process_mtp_loss: Function) -> Function:
    """Make the loss of each depth a mean over all its tokens of a step, whatever the microbatches and ranks.

    That is what Megatron computes for one microbatch on one rank. Without `calculate_per_token_loss` it is the mean
    over microbatches of the mean over their tokens, of all context-parallel ranks.
    """
    return rewritten(
        process_mtp_loss,
        (
            "mtp_loss_scale * mtp_loss * (original_num_tokens / num_tokens_safe)",
            "mtp_loss_scale * mtp_loss"
            " * mb_guard_tokens_per_label(mtp_layer_number + 1, original_num_tokens, num_tokens, cp_group)",
        ),
        (
            "mtp_loss_scale * mtp_loss / safe_num_tokens",
            "mtp_loss_scale * mtp_loss / mb_guard_mean_tokens(num_tokens, cp_group)",
        ),
        mb_guard_tokens_per_label=_tokens_per_label,
        mb_guard_mean_tokens=_mean_tokens,
    )


def _tokens_per_label(depth: int, tokens: Any, labels: Any, cp_group: Any) -> Any:
    """Return the tokens in the main loss per label of a depth: in the step if counted, else in the microbatch."""
    import torch

    step = current_step()
    if step is not None:
        ratio = step.in_loss[0] / step.in_loss[depth]
        # A step without any label of this depth has the loss 0 there, whatever the ratio. The ratio is NaN if the
        # microbatches have no loss mask; then only this microbatch is known.
        return torch.where(ratio.isnan(), tokens / labels.clamp(min=1), ratio)
    return _mean_tokens(tokens, cp_group) / _mean_tokens(labels, cp_group)


def _mean_tokens(tokens: Any, cp_group: Any) -> Any:
    """Return the mean of a number of tokens over context-parallel ranks, of which the sum is at least 1. Collective."""
    import torch

    if cp_group is None or cp_group.size() == 1:
        return tokens.clamp(min=1)
    total = tokens.clone()
    torch.distributed.all_reduce(total, group=cp_group)
    return total.clamp(min=1) / cp_group.size()


def log_sums(process_mtp_loss: Function) -> Function:
    """Record the sum of the losses of a microbatch instead of their mean; `mean_over_labels` divides it later."""
    return rewritten(
        process_mtp_loss,
        (
            "torch.sum(mtp_loss) * (num_tokens > 0).to(mtp_loss.dtype)\n            ) / num_tokens.clamp(min=1)",
            "torch.sum(mtp_loss)\n            )",
        ),
    )


@around
def mean_over_labels(
    reduce: Function,
) -> None:
    """Divide the losses of a step by its labels over all ranks, as the loss of the main model is logged."""
    reduce()
    tracker = reduce.__globals__["MTPLossLoggingHelper"].tracker
    if "loss_values" not in tracker:
        return
    # Megatron averages the losses over these ranks, and sums the labels: undo the average.
    group = tracker.get("avg_group")
    ranks = 1 if group is None else group.size()
    tracker["loss_values"].mul_(ranks).div_(tracker["total_values"].clamp(min=1))


@around
def without_scale(track: Function, loss_scale: float, *inputs: Any, **options: Any) -> Any:
    """Ignore the scale 1 / microbatches of the logged losses: `mean_over_labels` has divided them already."""
    return track(1.0, *inputs, **options)


@around
def roll_between_padded_borders(
    roll: Function, tensor: Any, shifts: int, dims: int, packed_seq_params: Any, cp_group: Any = None
) -> Any:
    """Roll a pack within the places of its sequences, padding included, where they are given."""
    if packed_seq_params.cu_seqlens_q_padded is not None:
        packed_seq_params = copy.copy(packed_seq_params)
        packed_seq_params.cu_seqlens_q = packed_seq_params.cu_seqlens_q_padded
    return roll(tensor, shifts, dims, packed_seq_params, cp_group)


def _patch_loss(wrap: Function) -> Patch:
    """Return the patch of Megatron's `process_mtp_loss`."""
    return Patch(wrap=wrap, module=_MODULE, target="process_mtp_loss", sources=("0b28213a2de65a23",))


FAULTS = (
    Fault(
        id="deferred-gradients-of-predictions",
        effect="wrong number",
        summary="defer_embedding_wgrad_compute with multi-token prediction adds the gradient of the output layer to "
        "the embedding of the last stage (or, if they share weights, to weights that are not used), and pairs inputs "
        "of one prediction with gradients of another.",
        shows="Silent: the output layer has a gradient of 0, and the embedding one that is several times too large.",
        action="refuse",
        test=f"{_TESTS}::test_deferred_gradients_of_predictions_go_to_the_embedding",
        met=lambda settings: bool(settings.defer_embedding_wgrad_compute and settings.mtp_num_layers),
        advice="Set defer_embedding_wgrad_compute=false.",
    ),
    Fault(
        id="mtp-loss-of-microbatches",
        effect="wrong number",
        summary="With loss masks the gradient of multi-token prediction depends on microbatches, replicas and "
        "context-parallel ranks, because each divides by its own number of labels.",
        shows="Silent. Two rows with 32 and 4 tokens in the loss as two microbatches or on two replicas: the gradient "
        "differs by 0.195 from that of one microbatch, with calculate_per_token_loss.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/7452",
        test=f"{_TESTS}::test_the_gradient_does_not_depend_on_microbatches",
        patches=(*COUNT_TOKENS_FIRST, _patch_loss(average_over_the_step)),
    ),
    Fault(
        id="mtp-logged-loss",
        effect="wrong number",
        summary="The logged losses of multi-token prediction are means over microbatches and ranks of means over "
        "labels.",
        shows="Silent: with loss masks `mtp_1 loss` depends on how a batch is cut, and `lm loss` does not.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5543",
        test=f"{_TESTS}::test_the_logged_loss_is_a_mean_over_labels",
        patches=(
            _patch_loss(log_sums),
            Patch(
                wrap=mean_over_labels,
                module=_MODULE,
                target="MTPLossLoggingHelper.reduce_metrics_in_tracker",
                sources=("0b929756d464b471",),
            ),
            Patch(
                wrap=without_scale,
                module=_MODULE,
                target="MTPLossLoggingHelper.track_mtp_metrics",
                sources=("b7bb6247d9765258",),
            ),
        ),
    ),
    Fault(
        id="mtp-rolls-across-padding",
        effect="wrong number",
        summary="Multi-token prediction rolls tokens, labels and loss masks of packed sequences between the borders "
        "without padding, although the pack is laid out with those of cu_seqlens_q_padded.",
        shows="Silent: of sequences of 5 and 3 tokens in places of 8, the second is not rolled at all: its tokens "
        "are their own labels. On two context-parallel ranks 1 2 3 4 5 becomes 3 0 4 2 5.",
        action="put right",
        test=f"{_TESTS}::test_padded_packs_are_rolled_within_their_places",
        report="https://github.com/NVIDIA/Megatron-LM/pull/6205",
        met=lambda settings: bool(settings.mtp_num_layers),
        patches=(
            Patch(
                wrap=roll_between_padded_borders,
                module=_MODULE,
                target="_roll_tensor_packed_seq",
                sources=("2839c413e4beaca4",),
            ),
        ),
    ),
)
