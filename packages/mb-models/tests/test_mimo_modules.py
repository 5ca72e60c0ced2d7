"""Per-module parallelism of encoder and language model matches one rank, from the same weights."""

import dataclasses

import mimo_ranks
import pytest
from megatron.core.distributed import DistributedDataParallelConfig

from mb_host.megatron.layers import host_block_spec
from mb_models.mimo.config import ModuleRanks
from mb_models.mimo.groups import reject_invalid_ranks
from mb_models.mimo.modules import MimoModulesProvider, reject_unsupported
from mb_models.rules import ModelConfigError


@pytest.fixture(scope="module")
def reference(groups, tmp_path_factory):
    """Return the folder of the common weights, and the results of one rank."""
    folder = str(tmp_path_factory.mktemp("start"))
    return folder, mimo_ranks.train_together(folder, groups)


@pytest.mark.parametrize(
    ("vision", "language"),
    [
        ({}, {"first": 1}),
        ({"data_parallel_size": 2}, {"tensor_parallel_size": 2}),
        ({"tensor_parallel_size": 2}, {"data_parallel_size": 2}),
    ],
    ids=["one rank each", "DP 2 into TP 2", "TP 2 into DP 2"],
)
def test_modules_match_one_rank(vision, language, reference, pool):
    folder, (losses, norms) = reference
    assert losses[-1] < losses[0] - 0.01
    ranks = pool.run(mimo_ranks.train_modules, folder, vision, language)
    for rank, (rank_losses, rank_norms) in enumerate(ranks):
        sees_only = rank < language.get("first", 0)
        assert rank_losses == ([] if sees_only else pytest.approx(losses, abs=1e-5))
        assert rank_norms == pytest.approx(norms, abs=1e-4)


@pytest.mark.parametrize(
    ("vision", "language"),
    [({}, {"first": 1}), ({"tensor_parallel_size": 2}, {"data_parallel_size": 2})],
    ids=["one rank each", "TP 2 into DP 2"],
)
def test_modules_resume_exactly(vision, language, groups, pool, tmp_path):
    whole = mimo_ranks.MimoModelProvider(
        mimo_ranks.SECTION, layer_spec=host_block_spec, device=mimo_ranks.CPU
    ).provide_chunks(groups)[0]
    ranks = pool.run(mimo_ranks.resume, str(tmp_path), vision, language)
    assert [straight for straight, _, _ in ranks] == [resumed for _, resumed, _ in ranks]
    assert {name for *_, names in ranks for name in names} == {name for name, _ in whole.named_parameters()}


def test_tensor_parallel_ranks_initialise_parts_of_one_encoder(pool):
    layouts = {"tensor_parallel_size": 2}, {"data_parallel_size": 2}
    one, other = pool.run(mimo_ranks.first_weights, *layouts, {})
    assert one[0] != other[0]
    assert one[1] == other[1]


def test_each_module_is_split_over_its_own_ranks_only(pool):
    """Three heads of the encoder are not divisible by the two tensor-parallel ranks of the language model."""
    sizes = {"vision_num_attention_heads": 3, "vision_hidden_size": 48}
    layouts = {"data_parallel_size": 2}, {"tensor_parallel_size": 2}
    assert [len(rank[0]) for rank in pool.run(mimo_ranks.first_weights, *layouts, sizes)] == [4 * 48] * 2


def test_heads_that_the_encoders_ranks_cannot_share_are_rejected(groups):
    arguments = {"layer_spec": host_block_spec, "device": mimo_ranks.CPU}
    section = dataclasses.replace(mimo_ranks.SECTION, vision_num_attention_heads=3, vision_hidden_size=48)
    with pytest.raises(ModelConfigError, match=r"\[M04\].*2 ranks cannot share vision_num_attention_heads=3"):
        MimoModulesProvider(section, vision_tensor_parallel_size=2, **arguments)


def test_wrapping_keeps_the_callers_settings_and_rejects_overlapped_communication(groups):
    modules = mimo_ranks.modules_on({}, {}, {})
    model = modules.provide(seed=1)
    with pytest.raises(ValueError, match=r"at least one is on \(True, False\), because the exchange"):
        modules.wrap(model, DistributedDataParallelConfig(overlap_grad_reduce=True))
    settings = DistributedDataParallelConfig(bucket_size=1000)
    modules.wrap(model, settings)
    assert settings == DistributedDataParallelConfig(bucket_size=1000)
    assert modules.groups.disjoint is False


@pytest.mark.parametrize(
    ("vision", "language", "message"),
    [
        ({"data_parallel_size": 2}, {"first": 1}, r"share some of ranks \[0, 1\] and \[1\]"),
        ({}, {"first": 1, "tensor_parallel_size": 2}, r"use ranks \[0, 1, 2\] of 2"),
        (
            {"data_parallel_size": 2},
            {"first": 2, "data_parallel_size": 3},
            "data_parallel_size=2 and 3, because",
        ),
        ({"data_parallel_size": 0}, {}, "vision: tensor_parallel_size=1, data_parallel_size=0, because"),
    ],
)
def test_invalid_ranks_of_modules_are_rejected(vision, language, message):
    with pytest.raises(ModelConfigError, match=message):
        reject_invalid_ranks(ModuleRanks(**vision), ModuleRanks(**language), world_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calculate_per_token_loss": False}, "Switch it on"),
        ({"bf16": True, "context_parallel_size": 2}, "context_parallel_size=2, bf16=True"),
        ({"fp8": "e4m3", "fp4": "e2m1"}, "fp8=e4m3, fp4=e2m1"),
    ],
)
def test_unsupported_settings_are_rejected(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        reject_unsupported(dataclasses.replace(mimo_ranks.SECTION, **changes))
