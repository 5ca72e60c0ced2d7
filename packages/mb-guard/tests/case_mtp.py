"""Functions that run on ranks of `test_mtp.py`."""

import copy
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel.schedules import finish_embedding_wgrad_compute
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper, roll_tensor
from tiny_gpt import LENGTH, batch, gpt, gradients, relative, rows, start

import mb_guard

AHEAD = {"mtp_num_layers": 1, "mtp_loss_scaling_factor": 1.0}


def two_rows() -> dict[str, torch.Tensor]:
    """Return two rows of which the second has four tokens in the loss."""
    mask = torch.ones(2, LENGTH)
    mask[1, 4:] = 0
    return batch(mask)


def cut(fault: str | None, per_token: bool, context_parallel: bool = False) -> float:
    """Return how far the gradient of a cut batch is from that of one microbatch on one rank, without the correction.

    The cut is two microbatches, or two context-parallel ranks, or else a replica for each row.
    """
    settings = {**AHEAD, "calculate_per_token_loss": per_token}
    whole = two_rows()
    start()
    with mb_guard.without("mtp-loss-of-microbatches"):
        # Replicas with the same rows have the gradient of one rank.
        right = gradients(gpt(**settings), [whole])
    with mb_guard.without(fault) if fault else nullcontext():
        if context_parallel:
            start(context_parallel_size=2)
            found = gradients(gpt(**settings, context_parallel_size=2), [whole])
        elif torch.distributed.get_world_size() == 1:
            found = gradients(gpt(**settings), [rows(whole, 0), rows(whole, 1)])
        else:
            found = gradients(gpt(**settings), [rows(whole, parallel_state.get_data_parallel_rank())])
    return relative(found, right)


def logged(fault: str | None) -> tuple[float, float]:
    """Return the logged loss of two microbatches, and that of one, which is a mean over its labels."""
    start()
    whole, found = two_rows(), []
    for microbatches in ([whole], [rows(whole, 0), rows(whole, 1)]):
        with mb_guard.without(fault) if fault else nullcontext():
            gradients(gpt(**AHEAD, calculate_per_token_loss=True), microbatches)
            values: dict[str, Any] = {}
            MTPLossLoggingHelper.track_mtp_metrics(1 / len(microbatches), 0, None, total_loss_dict=values)
            MTPLossLoggingHelper.clean_metrics_in_tracker()
            found.append(float(values["mtp_1 loss"]))
    return found[1], found[0]


def rolled(fault: str | None) -> tuple[list[int], list[int]]:
    """Return tokens of this context-parallel rank that were rolled, and the same from each sequence by itself.

    Sequences of 5 and 3 tokens are in places of 8.
    """
    ranks = torch.distributed.get_world_size()
    start(context_parallel_size=ranks)
    group = parallel_state.get_context_parallel_group()
    pack = torch.tensor([[1, 2, 3, 4, 5, 0, 0, 0], [6, 7, 8, 0, 0, 0, 0, 0]])
    ahead = torch.tensor([[2, 3, 4, 5, 0, 0, 0, 0], [7, 8, 0, 0, 0, 0, 0, 0]])

    def part(whole: torch.Tensor) -> torch.Tensor:
        chunks = whole.chunk(2 * ranks, dim=1)  # of each sequence
        return torch.cat((chunks[group.rank()], chunks[-1 - group.rank()]), dim=1).reshape(1, -1)

    borders = {"cu_seqlens_q": torch.tensor([0, 5, 8]), "cu_seqlens_q_padded": torch.tensor([0, 8, 16])}
    with mb_guard.without(fault) if fault else nullcontext():
        found, _ = roll_tensor(
            part(pack), cp_group=group, packed_seq_params=PackedSeqParams(qkv_format="thd", **borders)
        )
    return found[0].tolist(), part(ahead)[0].tolist()


def deferred(predictions: int | None) -> dict[str, float]:
    """Return how far deferred gradients of output layer and embedding are from those of the backward pass."""
    right, found = ([*_vocabulary_gradients(predictions, defer)] for defer in (False, True))
    return {
        name: float((a - b).norm() / b.norm())
        for name, a, b in zip(("output", "embedding"), found, right, strict=True)
    }


def _vocabulary_gradients(predictions: int | None, defer: bool) -> tuple[torch.Tensor, torch.Tensor]:
    start()
    model = gpt(mtp_num_layers=predictions)
    wrapped, layer = (
        DistributedDataParallel(model.config, DistributedDataParallelConfig(), model),
        model.output_layer,
    )
    if defer:  # as GPTModel sets it up for a last stage, whose other layers are Transformer Engine's
        layer.config = copy.copy(model.config)
        layer.config.defer_embedding_wgrad_compute = layer.config.gradient_accumulation_fusion = True
        layer.gradient_accumulation_fusion = True
        for name in ("embedding_activation_buffer", "grad_output_buffer"):
            setattr(model, name, [])
            setattr(layer, name, getattr(model, name))
    whole = two_rows()
    for number in range(2):
        row = rows(whole, number)
        masks = {"labels": row["labels"], "loss_mask": row["loss_mask"]}
        wrapped(row["tokens"], row["position_ids"], None, **masks).sum().backward()
    if defer:
        model.pre_process = False  # the last of several stages
        kernel = SimpleNamespace(
            wgrad_gemm_accum_fp32=lambda inputs, outputs, sums: sums.add_(outputs.t() @ inputs)
        )
        with mock.patch.dict(sys.modules, fused_weight_gradient_mlp_cuda=kernel):
            group = parallel_state.get_tensor_model_parallel_group()
            finish_embedding_wgrad_compute(layer.config, model, is_last_stage=True, tp_group=group)
    return layer.weight.main_grad, model.embedding.word_embeddings.weight.main_grad
