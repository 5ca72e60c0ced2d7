"""What a pipeline stage reads of a microbatch, on its device and cut to its context-parallel part.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One microbatch as a stage sees it; None is what the stage does not need."""

    tokens_BS: torch.Tensor | None = None
    labels_BS: torch.Tensor | None = None
    loss_mask_BS: torch.Tensor | None = None
    position_ids_BS: torch.Tensor | None = None
    attention_mask_B1SS: torch.Tensor | None = None
    packed_seq_params: PackedSeqParams | None = None
    """Where sequences that stand one behind the other begin; every stage needs it."""


def get_batch(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
    *,
    first_stage: bool,
    last_stage: bool,
    device: torch.device,
    cp_group: torch.distributed.ProcessGroup | None = None,
    mtp_process: bool = False,
    packed: bool = False,
) -> Batch:
    """Take the next microbatch and keep what this stage needs: inputs on the first, labels and loss mask on the last.

    A stage that `mtp_process` (multi-token prediction) reads both. A stage in the middle reads nothing and leaves
    the iterator alone. Copies to the device do not block, so they
    overlap only from pinned memory.

    `packed` microbatches hold sequences one behind the other in a single row, with `cu_seqlens` [1, sequences + 1],
    where they begin and the last ends, and `max_seqlen` [1], the length of the longest. Then every stage reads, because
    attention in each layer must stay within a sequence.
    Under context parallelism each rank keeps the two slices of every sequence that
    balance causal attention (zigzag order). No collective; does not synchronise with the device.

    Raises:
        BatchError: there is no iterator; a key is missing; S does not divide by twice the context-parallel size; the
            microbatch holds packed sequences unasked, in several rows or under context parallelism, or an attention
            mask that later stages would not see.
        StopIteration: the iterator has run out.
    """
    only_stage = first_stage and last_stage
    first_stage, last_stage = first_stage or mtp_process, last_stage or mtp_process
    if not (first_stage or last_stage or packed):
        return Batch()
    keys = (*FIRST_STAGE_KEYS * first_stage, *LAST_STAGE_KEYS * last_stage, *PACKED_KEYS * packed)
    whole = next_microbatch(
        data_iterator,
        keys,
        reader="only stages in the middle of a pipeline go without",
        remedy="Let the dataset yield them.",
    )
    _check(whole, only_stage=only_stage, packed=packed)
    if packed:
        return _packed(whole, keys, device=device, cp_size=1 if cp_group is None else cp_group.size())
    wanted = [*keys, "attention_mask"] if "attention_mask" in whole else keys
    parts = to_device(whole, wanted, device=device)
    if cp_group is not None and cp_group.size() > 1:
        _check_divides(parts[keys[0]].shape[1], cp_group.size())
        parts = get_batch_on_this_cp_rank(
            {**parts, "cu_seqlens": None}, is_hybrid_cp=False, cp_group=cp_group
        )
    return Batch(
        tokens_BS=parts.get("tokens"),
        labels_BS=parts.get("labels"),
        loss_mask_BS=parts.get("loss_mask"),
        position_ids_BS=parts.get("position_ids"),
        attention_mask_B1SS=parts.get("attention_mask"),
    )


def next_microbatch(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
    keys: Sequence[str],
    *,
    reader: str,
    remedy: str,
) -> Mapping[str, torch.Tensor]:
    """Take the next microbatch, which holds at least these keys. No collective, no copy.

    Args:
        data_iterator: of this rank.
        keys: what it has to hold.
        reader: who computes with it, completing "because ...".
        remedy: what to do where a key is missing, as a sentence.

    Raises:
        BatchError: there is no iterator, or a key is missing.
        StopIteration: the iterator has run out.
    """
    if data_iterator is None:
        raise BatchError(f"batch: no data iterator, because {reader}. Give this rank an iterator.")
    whole = next(data_iterator)
    missing = [key for key in keys if key not in whole]
    if missing:
        raise BatchError(
            f"batch: lacks {', '.join(missing)} (it has {', '.join(whole)}), because {reader}. {remedy}"
        )
    return whole


def to_device(
    whole: Mapping[str, torch.Tensor], keys: Sequence[str], *, device: torch.device
) -> dict[str, torch.Tensor]:
    """Copy these parts of a microbatch to the device, without waiting for it."""
    return {key: whole[key].to(device, non_blocking=True) for key in keys}


def _packed(
    whole: Mapping[str, torch.Tensor], keys: Sequence[str], *, device: torch.device, cp_size: int
) -> Batch:
    rows = len(whole["cu_seqlens"])
    if rows != 1 or cp_size != 1:
        raise BatchError(
            f"batch: holds packed sequences in {rows} rows on {cp_size} context-parallel ranks, because a pack is one "
            "row, which is not cut. Set train.micro_batch_size=1 and model.context_parallel_size=1, or do not pack."
        )
    parts = to_device(whole, [key for key in keys if key != "max_seqlen"], device=device)
    borders, longest = parts["cu_seqlens"][0], int(whole["max_seqlen"][0])
    return Batch(
        tokens_BS=parts.get("tokens"),
        labels_BS=parts.get("labels"),
        loss_mask_BS=parts.get("loss_mask"),
        position_ids_BS=parts.get("position_ids"),
        packed_seq_params=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=borders,
            cu_seqlens_kv=borders,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        ),
    )


def _check(whole: Mapping[str, torch.Tensor], *, only_stage: bool, packed: bool) -> None:
    if "cu_seqlens" in whole and not packed:
        raise BatchError(
            "batch: holds packed sequences (cu_seqlens), because attention would run across their borders. "
            "Use GPTForwardStep(packed=True), or a dataset without packing."
        )
    if "attention_mask" in whole and packed:
        raise BatchError(
            "batch: holds an attention_mask beside packed sequences, because their borders are the mask. Leave it out."
        )
    if "attention_mask" in whole and not only_stage:
        raise BatchError(
            "batch: holds an attention_mask, because other pipeline stages would not see it and attend causally. "
            "Set dataset.create_attention_mask=false."
        )


def _check_divides(sequence: int, cp_size: int) -> None:
    if sequence % (2 * cp_size) != 0:
        raise BatchError(
            f"batch: {sequence} tokens do not divide by twice the context-parallel size {cp_size}, because every rank "
            "takes two slices of each sequence. Change seq_length or context_parallel_size."
        )
