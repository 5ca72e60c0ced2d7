"""Fixtures: a training job in one process, on the host instead of a GPU, with groups of one rank."""

import sys
from pathlib import Path

import pytest

import mb_guard
import mb_host

sys.path.insert(0, str(Path(__file__).parent))  # ranks inherit it: they import family_ranks by name
mb_host.install()
mb_guard.install(quiet=True)

import torch  # noqa: E402  (after the install)


@pytest.fixture(scope="session")
def groups(tmp_path_factory):
    """Return Megatron process groups with one rank each, with seeded random states."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.process_groups_config import ProcessGroupCollection

    store = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    yield ProcessGroupCollection.use_mpu_process_groups()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


IMPORTS = ["mb_guard.auto", "mb_models.gpt.provider", "mb_host.megatron.hybrid", "torch._dynamo", "pytest"]


@pytest.fixture(scope="module")
def four_ranks():
    """Yield a pool of four ranks, for functions of the test modules."""
    with mb_host.RankPool(4, timeout_seconds=300, imports=IMPORTS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def one_rank():
    """Yield a pool of one rank, for functions of the test modules."""
    with mb_host.RankPool(1, imports=IMPORTS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def pool():
    """Yield a pool of two ranks, for functions of the test modules."""
    with mb_host.RankPool(2, imports=IMPORTS) as ranks:
        yield ranks


@pytest.fixture
def tiny():
    """Return arguments of a small GPT with current components: rotary positions, RMSNorm, SwiGLU, grouped queries."""
    return {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "ffn_hidden_size": 96,
        "gated_linear_unit": True,
        "activation_func": "silu",
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "position_embedding_type": "rope",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_length": 32,
        "vocab_size": 128,
        "transformer_impl": "local",
    }
