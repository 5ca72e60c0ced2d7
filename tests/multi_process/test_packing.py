"""Packed samples on several ranks from the command line: every stage and slice has the boundaries of samples."""

import pytest
from runs import losses, mb, train_here

SMALL = [
    "sft_tiny",
    "tokenizer.tokenizer_type=ByteTokenizer",
    "tokenizer.tokenizer_model=null",
    "model.vocab_size=null",
    "model.num_layers=3",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "model.seq_length=64",
    "dataset.seq_length=64",
    "dataset.largest=5",
    "dataset.packed_sequence_specs={packed_sequence_size: 64}",
    "train.global_batch_size=14",
    "train.micro_batch_size=1",
    "train.train_iters=3",
    "validation.eval_interval=3",
    "scheduler.lr_warmup_iters=1",
]


ROWS = ["dataset.packed_sequence_specs=null", "train.global_batch_size=28", "train.micro_batch_size=28"]
"""The same samples in separate rows: 14 packs contain all 28."""


IN_BATCH = [
    "dataset.packed_sequence_specs=null",
    "dataset.pack_sequences_in_batch=true",
    "train.global_batch_size=28",
    "train.micro_batch_size=7",
]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Overrides with weights to start from, and the losses of one rank that trains the samples in rows."""
    folder = tmp_path_factory.mktemp("start")
    words = [*SMALL, f"dataset.cache_dir={folder / 'cache'}", "model.num_layers=2"]
    train_here([*words, "checkpoint.pretrained_checkpoint=null", "train.train_iters=1"], folder / "base")
    words = [*words, f"checkpoint.pretrained_checkpoint={folder / 'base' / 'checkpoints'}"]
    train_here([*words, *ROWS], folder / "rows")
    return words, losses(folder / "rows")


@pytest.mark.parametrize("packs", [[], IN_BATCH], ids=["packs", "packs in the batch"])
@pytest.mark.parametrize(
    "layout",
    ["model.context_parallel_size=2", "model.pipeline_model_parallel_size=2"],
    ids=["context parallelism", "pipeline"],
)
def test_two_ranks_train_packs_as_one_rank_trains_rows(start, tmp_path, layout, packs):
    words, rows = start
    result = mb("finetune", *words, *packs, layout, "--nproc", "2", "--out", str(tmp_path / "packs"))
    assert (result.returncode, result.stderr) == (0, "")
    assert losses(tmp_path / "packs") == pytest.approx(rows, abs=1e-5)


@pytest.mark.matrix
def test_three_stages_train_as_one(tmp_path):
    words = [*SMALL, f"dataset.cache_dir={tmp_path / 'cache'}"]
    base = ["checkpoint.pretrained_checkpoint=null", "train.train_iters=1"]
    train_here([*words, *base], tmp_path / "base")
    words = [*words, f"checkpoint.pretrained_checkpoint={tmp_path / 'base' / 'checkpoints'}"]
    train_here(words, tmp_path / "one")
    three = ["model.pipeline_model_parallel_size=3", "--nproc", "3", "--out", str(tmp_path / "three")]
    result = mb("finetune", *words, *three)
    assert (result.returncode, result.stderr) == (0, "")
    assert losses(tmp_path / "three") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


EXPERTS = [
    "model.num_moe_experts=4",
    "model.moe_token_dispatcher_type=alltoall",
    "model.moe_ffn_hidden_size=32",
    "model.moe_router_load_balancing_type=seq_aux_loss",
    "model.moe_aux_loss_coeff=0.5",
]


def test_padding_is_left_out_of_the_balance_on_every_stage(tmp_path):
    words = [*SMALL, *EXPERTS, f"dataset.cache_dir={tmp_path / 'cache'}"]
    base = ["checkpoint.pretrained_checkpoint=null", "train.train_iters=1"]
    train_here([*words, *base], tmp_path / "base")
    words = [*words, f"checkpoint.pretrained_checkpoint={tmp_path / 'base' / 'checkpoints'}"]
    train_here([*words, *ROWS], tmp_path / "rows")
    three = ["model.pipeline_model_parallel_size=3", "--nproc", "3", "--out", str(tmp_path / "three")]
    result = mb("finetune", *words, *ROWS, "train.micro_batch_size=7", *three)
    assert (result.returncode, result.stderr) == (0, "")
    assert losses(tmp_path / "three") == pytest.approx(losses(tmp_path / "rows"), abs=1e-4)
