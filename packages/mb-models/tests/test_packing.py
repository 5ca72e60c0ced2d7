"""Packs have the same losses as their sequences in separate rows, step by step, under any layout."""

from functools import partial
from itertools import repeat

import pytest
import torch
from megatron.core import tensor_parallel
from tiny_training import prepare, start

from mb_host.layers import host_block_spec
from mb_models import BatchError, GPTForwardStep, GPTModelConfig, GPTModelProvider, get_batch

CPU = torch.device("cpu")
LENGTHS = (13, 5, 9, 3)
"""Lengths of four sequences, which fill 30 of the 32 tokens of a pack."""


def sequences():
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(1, 128, (length + 1,), generator=draw) for length in LENGTHS]


def in_rows():
    """Return the sequences in separate rows, padded."""
    rows = {"tokens": torch.zeros(4, 32, dtype=torch.long), "labels": torch.zeros(4, 32, dtype=torch.long)}
    rows["loss_mask"] = torch.zeros(4, 32)
    for row, ids in enumerate(sequences()):
        rows["tokens"][row, : len(ids) - 1], rows["labels"][row, : len(ids) - 1] = ids[:-1], ids[1:]
        rows["loss_mask"][row, : len(ids) - 1] = 1
    return {**rows, "position_ids": torch.arange(32).expand(4, 32).contiguous()}


def in_a_pack():
    """Return the sequences in one row."""
    tokens = torch.cat([*(ids[:-1] for ids in sequences()), torch.zeros(2, dtype=torch.long)])
    labels = torch.cat([*(ids[1:] for ids in sequences()), torch.zeros(2, dtype=torch.long)])
    return {
        "tokens": tokens[None],
        "labels": labels[None],
        "loss_mask": torch.cat([torch.ones(30), torch.zeros(2)])[None],
        "position_ids": torch.cat([torch.arange(length) for length in (*LENGTHS, 2)])[None],
        "cu_seqlens": torch.tensor([[0, 13, 18, 27, 30, 32, 32]], dtype=torch.int32),
        "max_seqlen": torch.tensor([13], dtype=torch.int32),
    }


def train(settings, groups, *, batch, packed, steps=3):
    """Train on one repeated batch and return the loss of each step, None on other stages."""
    provider = GPTModelProvider(GPTModelConfig(**settings), layer_spec=host_block_spec, device=CPU)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    training = prepare(provider, provider.provide_chunks(groups), groups)
    rows = len(batch["tokens"])
    return [
        training.step(
            partial(repeat, batch),
            micro_batches=2,
            micro_batch_size=rows,
            forward_step=GPTForwardStep(packed=packed),
        )
        for _ in range(steps)
    ]


def both_ways(settings, groups):
    return [
        train(settings, groups, batch=in_rows(), packed=False),
        train(settings, groups, batch=in_a_pack(), packed=True),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position_embedding_type": "learned_absolute"},
        {"window_size": (4, 0), "qk_layernorm": True, "attention_output_gate": True},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"},
    ],
    ids=["rope", "learned", "window", "recompute", "experts"],
)
def test_a_pack_matches_its_sequences(tiny, groups, settings):
    rows, pack = both_ways({**tiny, **settings, "calculate_per_token_loss": True}, groups)
    assert rows[-1] < rows[0]
    assert pack == pytest.approx(rows, abs=1e-5)


def both_ways_on_ranks(settings):
    return both_ways(settings, start(settings))


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "num_layers": 4},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    ],
    ids=["intermediate stages", "sequence parallel"],
)
def test_all_ranks_and_stages_read_the_boundaries(tiny, pool, layout):
    if "pipeline_model_parallel_size" in layout:
        layout = {**layout, "overlap_p2p_comm": True, "batch_p2p_comm": False}
    rows, pack = pool.run(both_ways_on_ranks, {**tiny, **layout, "calculate_per_token_loss": True})[-1]
    assert pack == pytest.approx(rows, abs=1e-5)


def test_an_intermediate_stage_reads_only_the_boundaries():
    batch = get_batch(iter([in_a_pack()]), first_stage=False, last_stage=False, device=CPU, packed=True)
    assert batch.tokens_BS is batch.labels_BS is None
    assert batch.packed_seq_params.qkv_format == "thd"
    assert batch.packed_seq_params.cu_seqlens_q.tolist() == [0, 13, 18, 27, 30, 32, 32]
    assert batch.packed_seq_params.max_seqlen_kv == 13


class TwoRanks:
    def size(self):
        return 2


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"cu_seqlens": torch.zeros(2, 3)}, {}, "in 2 rows on 1 context-parallel ranks"),
        ({}, {"cp_group": TwoRanks()}, "in 1 rows on 2 context-parallel ranks"),
        ({"attention_mask": torch.zeros(1)}, {}, "an attention_mask and packed sequences"),
    ],
)
def test_unsupported_packs_are_rejected(change, options, message):
    data = iter([{**in_a_pack(), **change}])
    with pytest.raises(BatchError, match=message):
        get_batch(data, first_stage=True, last_stage=True, device=CPU, packed=True, **options)


def test_packs_without_boundaries_are_rejected():
    with pytest.raises(BatchError, match="lacks cu_seqlens, max_seqlen"):
        get_batch(iter([in_rows()]), first_stage=True, last_stage=True, device=CPU, packed=True)
