"""Functions that ranks run for `test_invariance`: one step on a cut batch, its weights and its losses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from family_cases import FAMILIES, SHAPE, FamilyCase
from family_ranks import build, read_start
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import apply_factories
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from tiny_training import start

from mb_models import GPTForwardStep, MimoForwardStep, T5ForwardStep, wrap_ddp

LOSS_OF = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
    "none": None,
}
ROWS, LENGTH = 8, SHAPE["seq_length"]
LENGTHS = (16, 5, 9, 16, 3, 12, 7, 16)
"""Tokens of each row that are not padding; for the families with padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a batch of eight rows is processed."""

    micro_batch: int = ROWS
    layout: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    form: str = "padded"
    """padded: every row to the full length; short: to the longest of its microbatch; packs."""

    def __str__(self) -> str:
        parts = [f"{name.split('_')[0]}{size}" for name, size in self.layout.items()]
        return " ".join([self.form, f"{self.ranks} ranks", f"micro {self.micro_batch}", *parts])


def microbatches(cut: Cut, replicas: int, *, union: bool) -> list[list[list[int]]]:
    """Return the rows of each microbatch of each replica; with `union` those of one replica that has all of them."""
    rows = torch.arange(ROWS).chunk(replicas)
    split = [[part.tolist() for part in each.split(cut.micro_batch)] for each in rows]
    if not union:
        return split
    return [[[row for part in parts for row in part] for parts in zip(*split, strict=True)]]


def loss_mask(kind: str) -> torch.Tensor:
    """Return a mask of all rows."""
    draw = torch.Generator().manual_seed(722)
    mask = torch.ones(ROWS, LENGTH)
    if kind == "random":
        mask = (torch.rand(ROWS, LENGTH, generator=draw) < 0.4).float()
        mask[torch.randperm(ROWS, generator=draw)[:3]] = 0
    if kind == "answers":
        mask[:, : LENGTH // 4] = 0
        mask[2] = mask[4] = 0
        mask[0, -1] = 1
    if kind == "one token":
        mask.zero_()
        mask[3, 1] = 1
    return mask


def rows_of(kind: str, mask: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(
        SHAPE["vocab_size"], (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0)
    )
    lengths = torch.tensor(LENGTHS if kind in ("gpt", "hybrid") and mask != "full" else [LENGTH] * ROWS)
    padding = torch.arange(LENGTH) >= lengths[:, None]
    batch = {
        "tokens": tokens[:, :-1].masked_fill(padding, 1),
        "labels": tokens[:, 1:].masked_fill(padding, 1),
        "loss_mask": loss_mask(mask).masked_fill(padding, 0),
    }
    return batch if mask == "full" else batch | {"padding_mask": padding}


def collate(
    batch: Mapping[str, torch.Tensor], rows: Sequence[int], cut: Cut, cp: int
) -> dict[str, torch.Tensor]:
    """Return a microbatch of some rows in the form of the cut."""
    if cut.form == "packs":
        return pack(batch, rows, 2 * cp if cp > 1 else 1)
    length = LENGTH
    if cut.form == "short":
        length = -(-max(LENGTHS[row] for row in rows) // (2 * cp)) * 2 * cp
    part = {name: each[list(rows), :length] for name, each in batch.items()}
    return part | {"position_ids": torch.arange(length).expand(len(rows), -1)}


def pack(batch: Mapping[str, torch.Tensor], rows: Sequence[int], multiple: int) -> dict[str, torch.Tensor]:
    sizes = [-(-LENGTHS[row] // multiple) * multiple for row in rows]
    size = LENGTH * len(rows)
    sizes += [size - sum(sizes)] * (sum(sizes) < size)
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in batch}
    fill = {"tokens": 1, "labels": 1, "loss_mask": 0, "padding_mask": True}
    for number, length in enumerate(sizes):
        for name, each in batch.items():
            row = torch.full((length,), fill[name], dtype=each.dtype)
            if number < len(rows):
                row[: LENGTHS[rows[number]]] = each[rows[number], : LENGTHS[rows[number]]]
            parts[name].append(row)
    return {
        **{name: torch.cat(each)[None] for name, each in parts.items()},
        "position_ids": torch.cat([torch.arange(length) for length in sizes])[None],
        "cu_seqlens": torch.tensor([[0, *torch.tensor(sizes).cumsum(0)]], dtype=torch.int32),
        "max_seqlen": torch.tensor([max(sizes)], dtype=torch.int32),
    }


def train_here(
    row: FamilyCase, cut: Cut, folder: str, outs: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Train one step on this rank of several, for each mask."""
    groups = start({**row.model, **cut.layout})
    return {mask: train(row, cut, mask, folder, out, groups) for mask, out in outs.items()}


def train(
    row: FamilyCase, cut: Cut, mask: str, folder: str, out: str, groups: Any, *, union_of: int = 0
) -> dict[str, float]:
    """Train one step and save the weights to `out`; return what is logged, on the last stage.

    `union_of`: replicas whose microbatches are joined into those of one rank; 0: this rank's own.
    """
    kind = FAMILIES[row.family].kind
    provider, chunks = build(replace(row, layout=cut.layout), groups)
    read_start(chunks, folder)
    share = microbatches(cut, union_of or groups.dp.size(), union=bool(union_of))
    batch, own = rows_of(kind, mask), share[0 if union_of else groups.dp.rank()]

    def iterate() -> Iterator[dict[str, torch.Tensor]]:
        for rows in own:
            yield convert(kind, collate(batch, rows, cut, groups.cp.size()))

    form = {"packed": cut.form == "packs", "padded": "padding_mask" in batch}
    logged = step(provider, chunks, groups, iterate, number=len(own), kind=kind, cut=cut, form=form)
    torch.save(
        [shard for chunk in chunks for shard in shards(chunk)], f"{out}/{torch.distributed.get_rank()}.pt"
    )
    return logged


def shards(chunk: Any) -> Iterator[tuple[str, tuple[int, ...], tuple[slice | int, ...], torch.Tensor]]:
    """Yield the name, the global shape, the place and the values of each tensor of this rank."""
    state = chunk.sharded_state_dict()
    apply_factories(state)
    for shard in nested_values(state):
        if isinstance(shard, ShardedTensor) and shard.data is not None:
            values = shard.data.detach().reshape(shard.local_shape)
            yield shard.key, shard.global_shape, shard.global_slice(), values


def weights(folder: str) -> dict[str, torch.Tensor]:
    """Return the complete tensors that the ranks have saved in a folder."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.pt")):
        for name, shape, place, values in torch.load(file, weights_only=False):
            found.setdefault(name, torch.full(shape, torch.nan))[place] = values
    return found


def convert(kind: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the microbatch as a family reads it."""
    if kind == "t5":
        half = LENGTH // 2
        written = batch["tokens"][:, :half]
        padded = torch.ones(batch["tokens"].shape)
        padded[:, -2:] = 0
        return {
            "text_enc": batch["tokens"],
            "enc_mask": padded,
            "text_dec": written.roll(1, dims=1),
            "labels": written,
            "loss_mask": batch["loss_mask"][:, :half],
        }
    if kind == "mimo":
        placed = torch.zeros(batch["tokens"].shape, dtype=torch.bool)
        placed[:, 3:7] = True
        colours = (batch["tokens"][:, :12] / SHAPE["vocab_size"]).reshape(-1, 3, 2, 2)
        return {
            **{name: each for name, each in batch.items() if name != "padding_mask"},
            "tokens": batch["tokens"].masked_fill(placed, -200),
            "loss_mask": batch["loss_mask"].masked_fill(placed, 0),
            "images": colours.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3),
        }
    return batch


def step(
    provider: Any,
    chunks: list[Any],
    groups: Any,
    iterate: Any,
    *,
    number: int,
    kind: str,
    cut: Cut,
    form: Any,
) -> dict[str, float]:
    """Take one step of plain gradient descent, whose change of the weights is the gradient, clipped by its norm."""
    transformer = provider.transformer
    model = wrap_ddp(chunks, DistributedDataParallelConfig(grad_reduce_in_fp32=True), pg_collection=groups)
    settings = OptimizerConfig(
        optimizer="sgd",
        lr=5000.0,
        sgd_momentum=0.0,
        weight_decay=0.0,
        clip_grad=1e-2,
        log_num_zeros_in_grad=True,
    )
    optimizer = get_megatron_optimizer(settings, model, use_gloo_process_groups=False)
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.grad_scale_func = optimizer.scale_loss
    steps = {
        "t5": T5ForwardStep,
        "mimo": MimoForwardStep,
        "gpt": lambda: GPTForwardStep(**form),
    }
    reports = get_forward_backward_func()(
        forward_step_func=steps.get(kind, steps["gpt"])(),
        data_iterator=[iterate() for _ in model],
        model=model,
        num_microbatches=number,
        seq_length=LENGTH * cut.micro_batch if cut.form == "packs" else LENGTH,
        micro_batch_size=1 if cut.form == "packs" else cut.micro_batch,
        forward_only=False,
    )
    updated, norm, zeros = optimizer.step()
    assert updated
    logged: dict[str, float] = {"grad norm": float(norm)}
    if kind != "mimo":  # the gradient of a bias of its keys is zero but for rounding
        logged["zeros"] = float(zeros)
    if reports:
        total = torch.stack([report["lm loss"] for report in reports]).sum(0)
        torch.distributed.all_reduce(total, group=groups.dp_cp)
        logged["lm loss"] = float(total[0] / total[1])
    found = Written(logged)
    if transformer.num_moe_experts:
        # Named, because a stage without experts has tracked none.
        names = [LOSS_OF[transformer.moe_router_load_balancing_type], "z_loss"]
        get_moe_metrics_tracker().report(
            1 / number,
            0,
            writer=found,
            force_initialize=True,
            track_names=[name for name in names if name],
            num_layers=transformer.num_layers,
            mtp_num_layers=transformer.mtp_num_layers,
        )
    if transformer.mtp_num_layers and reports:
        MTPLossLoggingHelper.track_mtp_metrics(1 / number, 0, found)
    return logged if reports else {}


class Written:
    """Writer that keeps scalars."""

    def __init__(self, into: dict[str, float]) -> None:
        self.into = into

    def add_scalar(self, name: str, value: Any, _step: int) -> None:
        self.into[name] = float(value)


def difference(start_: Mapping[str, torch.Tensor], one: str, other: str) -> dict[str, float]:
    """Return the difference of two saved models by parameter, relative to the step of the first."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    moved = {name: float((first[name] - start_[name]).norm()) for name in first}
    least = 1e-3 * max(moved.values())  # of tensors that hardly move, the difference is rounding
    return {name: float((first[name] - second[name]).norm()) / max(moved[name], least) for name in first}
