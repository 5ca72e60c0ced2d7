"""Batches of a pipeline stage, on its device and split over context-parallel ranks.

Shapes: B sequences of a microbatch, S tokens of a sequence (of this rank's part of it under context parallelism).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.utils import get_batch_on_this_cp_rank

from mb_models.errors import BatchError

FIRST_STAGE_KEYS = ("tokens", "position_ids")
LAST_STAGE_KEYS = ("labels", "loss_mask")
PACKED_KEYS = ("cu_seqlens", "max_seqlen")
PADDING_KEY = "padding_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One microbatch for one pipeline stage; fields that the stage does not need are None."""

    tokens_BS: torch.Tensor | None = None
    labels_BS: torch.Tensor | None = None
    loss_mask_BS: torch.Tensor | None = None
    position_ids_BS: torch.Tensor | None = None
    attention_mask_B1SS: torch.Tensor | None = None
    padding_mask_BS: torch.Tensor | None = None
    """True for padding, which routers of experts leave out; required on every stage if there is any."""
    packed_seq_params: PackedSeqParams | None = None
    """Boundaries of packed sequences; required on every stage."""

    @classmethod
    def of(
        cls, tensors: Mapping[str, torch.Tensor | None], packed_seq_params: PackedSeqParams | None = None
    ) -> "Batch":
        """Return the batch of the tensors of a microbatch, by their keys; other keys are ignored."""
        return cls(
            tokens_BS=tensors.get("tokens"),
            labels_BS=tensors.get("labels"),
            loss_mask_BS=tensors.get("loss_mask"),
            position_ids_BS=tensors.get("position_ids"),
            attention_mask_B1SS=tensors.get("attention_mask"),
            padding_mask_BS=tensors.get(PADDING_KEY),
            packed_seq_params=packed_seq_params,
        )


def get_batch(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
    *,
    first_stage: bool,
    last_stage: bool,
    device: torch.device,
    cp_group: torch.distributed.ProcessGroup | None = None,
    mtp_process: bool = False,
    packed: bool = False,
    padded: bool = False,
) -> Batch:
    """Read the next microbatch; keep inputs on the first stage, and labels and loss mask on the last.

    A stage with layers of multi-token prediction (`mtp_process`) reads both. An intermediate stage reads nothing and
    does not advance the iterator. Copies to the device are asynchronous, so they overlap with computation only from
    pinned memory.

    With `packed`, a microbatch is a single row of concatenated sequences, with `cu_seqlens` [1, sequences + 1], the
    offset of each sequence and the end of the last, and `max_seqlen` [1], the length of the longest. Every stage then
    reads the boundaries, because attention in each layer must stay within a sequence.
    With `padded`, a microbatch holds `padding_mask`, which every stage reads for its routers; without, a stage that
    reads takes it if it is there.
    Under context parallelism each rank keeps the two slices of every sequence that balance causal attention (zigzag
    order), also of every packed sequence; the boundaries remain those of the complete sequences. Not collective; does
    not synchronise with the device.

    Raises:
        BatchError: there is no iterator; a key is missing; `loss_mask` has other values than 0 and 1; S, or the length
            of a packed sequence, is not divisible by twice the context-parallel size; the microbatch holds packed
            sequences without `packed` or in several rows, or an attention mask that other stages would not receive.
        StopIteration: the iterator is exhausted.
    """
    only_stage = first_stage and last_stage
    first_stage, last_stage = first_stage or mtp_process, last_stage or mtp_process
    if not (first_stage or last_stage or packed or padded):
        return Batch()
    keys = (
        *FIRST_STAGE_KEYS * first_stage,
        *LAST_STAGE_KEYS * last_stage,
        *(PADDING_KEY,) * padded,
        *PACKED_KEYS * packed,
    )
    microbatch = next_microbatch(
        data_iterator,
        keys,
        reader="every stage but an intermediate one reads data",
        remedy="Use a dataset that yields them.",
    )
    _check(microbatch, only_stage=only_stage, packed=packed)
    optional = [key for key in ("attention_mask", PADDING_KEY) if key in microbatch and key not in keys]
    keys = (*keys, *optional)
    if packed:
        return _packed(microbatch, keys, device=device, cp_group=cp_group)
    parts = to_device(microbatch, keys, device=device)
    if cp_group is not None and cp_group.size() > 1:
        _check_divides(parts[keys[0]].shape[1], cp_group.size())
        batch = {**parts, "cu_seqlens": None}
        parts = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=cp_group)
    return Batch.of(parts)


def next_microbatch(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
    keys: Sequence[str],
    *,
    reader: str,
    remedy: str,
) -> Mapping[str, torch.Tensor]:
    """Return the next microbatch, which holds at least these keys. Not collective; copies nothing.

    Args:
        data_iterator: data iterator of this rank.
        keys: required keys.
        reader: subject and verb of the consumer, completing "because ...".
        remedy: sentence on what to do if a key is missing.

    Raises:
        BatchError: there is no iterator, a key is missing, or a `loss_mask` on the host has weights, or selects a
            negative label.
        StopIteration: the iterator is exhausted.
    """
    if data_iterator is None:
        raise BatchError(f"batch: no data iterator, because {reader}. Give this rank an iterator.")
    microbatch = next(data_iterator)
    missing = [key for key in keys if key not in microbatch]
    if missing:
        raise BatchError(
            f"batch: lacks {', '.join(missing)} (it has {', '.join(microbatch)}), because {reader}. {remedy}"
        )
    mask, labels = microbatch.get("loss_mask"), microbatch.get("labels")
    # On the device the check would wait for it.
    if mask is None or mask.device.type != "cpu":
        return microbatch
    weights = (mask != 0) & (mask != 1)
    ignored = torch.zeros_like(weights)
    if labels is not None and labels.device.type == "cpu" and labels.shape == mask.shape:
        ignored = (labels < 0) & (mask != 0)
    if not (weights | ignored).any():  # one read
        return microbatch
    if weights.any():
        raise BatchError(
            f"batch: loss_mask has weights between {mask.min():g} and {mask.max():g}, because Megatron's schedules "
            "divide the loss by a whole number of tokens, and the sum of the weights would be truncated. Use 0 and 1; "
            "for a weighted loss pass your own forward step, which reads the weights and returns its own divisor."
        )
    raise BatchError(
        f"batch: labels has {int(ignored.sum())} negative numbers where loss_mask is 1, because Megatron's loss "
        "ignores no label: of one outside the vocabulary it is the logarithm of the sum of all exponentials. Set "
        "loss_mask to 0 there."
    )


def to_device(
    microbatch: Mapping[str, torch.Tensor], keys: Sequence[str], *, device: torch.device
) -> dict[str, torch.Tensor]:
    """Copy the tensors under `keys` to the device, without waiting for the copy."""
    return {key: microbatch[key].to(device, non_blocking=True) for key in keys}


def _packed(
    microbatch: Mapping[str, torch.Tensor],
    keys: Sequence[str],
    *,
    device: torch.device,
    cp_group: torch.distributed.ProcessGroup | None,
) -> Batch:
    rows = len(microbatch["cu_seqlens"])
    if rows != 1:
        raise BatchError(
            f"batch: holds packed sequences in {rows} rows, because a pack is one row. Set train.micro_batch_size=1, "
            "or do not pack."
        )
    longest, cu_seqlens = int(microbatch["max_seqlen"][0]), microbatch["cu_seqlens"][0]
    if cp_group is not None and cp_group.size() > 1:
        # On the host, where the boundaries are: no synchronisation, and only slices of this rank are copied.
        index = packed_slices(cu_seqlens, rank=cp_group.rank(), ranks=cp_group.size())
        tokens = {key for key in keys if key not in PACKED_KEYS}
        microbatch = {
            key: tensor.index_select(1, index) if key in tokens else tensor
            for key, tensor in microbatch.items()
        }
    parts = to_device(microbatch, [key for key in keys if key != "max_seqlen"], device=device)
    boundaries = parts["cu_seqlens"][0]
    packing = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=boundaries,
        cu_seqlens_kv=boundaries,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        seq_idx=sequence_numbers(boundaries, tokens=int(cu_seqlens[-1]))[None],
    )
    return Batch.of(parts, packing)


def _check(microbatch: Mapping[str, torch.Tensor], *, only_stage: bool, packed: bool) -> None:
    if "cu_seqlens" in microbatch and not packed:
        raise BatchError(
            "batch: holds packed sequences (cu_seqlens), because attention would cross their boundaries. "
            "Use GPTForwardStep(packed=True), or a dataset without packing."
        )
    if "attention_mask" in microbatch and packed:
        raise BatchError(
            "batch: holds an attention_mask and packed sequences, because the boundaries are the mask. Remove the mask."
        )
    if "attention_mask" in microbatch and not only_stage:
        raise BatchError(
            "batch: holds an attention_mask, because other pipeline stages do not receive it and attend causally. "
            "Set dataset.create_attention_mask=false."
        )


def sequence_numbers(cu_seqlens: torch.Tensor, *, tokens: int) -> torch.Tensor:
    """Return the number of the sequence of each token of a pack, [tokens], int32, on the device of the boundaries.

    Megatron's Mamba layers reset their states by it, and without it mix all sequences of a pack; Megatron itself
    computes it only from `total_tokens`, with a synchronisation with the device.
    """
    positions = torch.arange(tokens, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return torch.bucketize(positions, cu_seqlens[1:], right=True, out_int32=True)


def packed_slices(cu_seqlens: torch.Tensor, *, rank: int, ranks: int) -> torch.Tensor:
    """Return the positions in a pack, [S / ranks], of the two slices of every sequence that a rank keeps.

    A sequence has twice as many slices as there are ranks; rank r keeps slices r and 2 * ranks - 1 - r.

    Args:
        cu_seqlens: offsets of the sequences in the pack and its end, [sequences + 1], on the CPU.
        rank: rank in the context-parallel group.
        ranks: size of the context-parallel group.

    Raises:
        BatchError: a sequence is not divisible into slices.
    """
    lengths = torch.diff(cu_seqlens)
    wrong = lengths[lengths % (2 * ranks) != 0]
    if len(wrong):
        _check_divides(int(wrong[0]), ranks)
    sizes = (lengths // (2 * ranks)).repeat_interleave(2)
    slices = torch.tensor([rank, 2 * ranks - 1 - rank]).repeat(len(lengths))
    starts = cu_seqlens[:-1].repeat_interleave(2) + slices * sizes
    ends = sizes.cumsum(0)
    return torch.arange(int(sizes.sum())) + (starts - ends + sizes).repeat_interleave(sizes)


def _check_divides(sequence: int, cp_size: int) -> None:
    if sequence % (2 * cp_size) != 0:
        raise BatchError(
            f"batch: {sequence} tokens are not divisible by twice the context-parallel size {cp_size}, because each "
            "rank takes two slices of each sequence. Change seq_length or context_parallel_size."
        )
