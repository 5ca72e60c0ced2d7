"""Packs have the same losses as their sequences in separate rows, step by step, under any layout."""

from functools import partial
from itertools import repeat

import pytest
import torch
from megatron.core import tensor_parallel
from megatron.core.packed_seq_params import PackedSeqParams
from tiny_training import prepare, start

from mb_host.megatron.layers import host_block_spec
from mb_models import BatchError, GPTForwardStep, GPTModelConfig, GPTModelProvider, get_batch
from mb_models.training.batches import packed_slices

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


def in_a_pack(multiple=1, size=32):
    """Return the sequences in one row of `size` tokens, each padded to a multiple of this number of tokens."""
    pack = {name: torch.zeros(1, size, dtype=torch.long) for name in ("tokens", "labels", "position_ids")}
    pack["loss_mask"] = torch.zeros(1, size)
    offsets = [0]
    for ids in sequences():
        length, taken = len(ids) - 1, -(-(len(ids) - 1) // multiple) * multiple
        place = slice(offsets[-1], offsets[-1] + length)
        pack["tokens"][0, place], pack["labels"][0, place], pack["loss_mask"][0, place] = ids[:-1], ids[1:], 1
        offsets.append(offsets[-1] + taken)
    offsets += [size, size]
    lengths = torch.diff(torch.tensor(offsets))
    pack["position_ids"][0] = torch.cat([torch.arange(length) for length in lengths])
    return {
        **pack,
        "cu_seqlens": torch.tensor([offsets], dtype=torch.int32),
        "max_seqlen": lengths.max()[None].to(torch.int32),
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


def both_ways(settings, groups, multiple=1, size=32):
    return [
        train(settings, groups, batch=in_rows(), packed=False),
        train(settings, groups, batch=in_a_pack(multiple, size), packed=True),
    ]


LATENT = {
    "multi_latent_attention": True,
    "num_query_groups": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 8,
}
FURTHER_TOKENS = {"mtp_num_layers": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position_embedding_type": "learned_absolute"},
        {"window_size": (4, 0), "qk_layernorm": True, "attention_output_gate": True},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"},
        LATENT,
        FURTHER_TOKENS,
    ],
    ids=["rope", "learned", "window", "recompute", "experts", "latent", "further tokens"],
)
def test_a_pack_matches_its_sequences(tiny, groups, settings):
    rows, pack = both_ways({**tiny, **settings, "calculate_per_token_loss": True}, groups)
    assert rows[-1] < rows[0]
    assert pack == pytest.approx(rows, abs=1e-5)


def both_ways_on_ranks(settings, *pack):
    return both_ways(settings, start(settings), *pack)


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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position_embedding_type": "learned_absolute"},
        LATENT,
        FURTHER_TOKENS,
        {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"},
    ],
    ids=["rope", "learned", "latent", "further tokens", "experts"],
)
def test_a_pack_split_over_context_parallel_ranks_matches_its_sequences(tiny, pool, settings):
    layout = {**tiny, **settings, "context_parallel_size": 2, "calculate_per_token_loss": True}
    rows, pack = pool.run(both_ways_on_ranks, layout, 4, 48)[-1]
    assert rows[-1] < rows[0]
    assert pack == pytest.approx(rows, abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_token_of_a_pack_is_on_one_rank(ranks):
    offsets = torch.tensor([0, 24, 24, 36, 48], dtype=torch.int32)
    parts = [packed_slices(offsets, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert sorted(torch.cat(parts).tolist()) == list(range(48))
    if ranks == 2:
        assert parts[0].tolist()[:12] == [*range(6), *range(18, 24)]


def test_an_intermediate_stage_reads_only_the_boundaries():
    batch = get_batch(iter([in_a_pack()]), first_stage=False, last_stage=False, device=CPU, packed=True)
    assert batch.tokens_BS is batch.labels_BS is None
    assert batch.packed_seq_params.qkv_format == "thd"
    assert batch.packed_seq_params.cu_seqlens_q.tolist() == [0, 13, 18, 27, 30, 32, 32]
    assert batch.packed_seq_params.max_seqlen_kv == 13
    megatrons = PackedSeqParams(cu_seqlens_q=batch.packed_seq_params.cu_seqlens_q, total_tokens=32)
    assert torch.equal(batch.packed_seq_params.seq_idx, megatrons.seq_idx)


class TwoRanks:
    def size(self):
        return 2

    def rank(self):
        return 0


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"cu_seqlens": torch.zeros(2, 3)}, {}, "packed sequences in 2 rows"),
        ({}, {"cp_group": TwoRanks()}, "13 tokens are not divisible by twice the context-parallel size 2"),
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
