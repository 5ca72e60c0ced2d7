"""Megatron's process groups, as each of eight ranks opens them without the other processes, and seeds."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
mb_host = pytest.importorskip("mb_host")

if find_spec("megatron") is None:
    pytest.skip("needs megatron-core", allow_module_level=True)
mb_host.install()  # before megatron is imported

from dataclasses import replace  # noqa: E402

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from mb_launch import GroupOptions, ParallelDegrees, SeedOptions, World, default_process_group  # noqa: E402
from mb_launch.groups.decentralized_pg import DENSE, EXPERT  # noqa: E402
from mb_launch.mcore import megatron_groups, seed_model_parallel  # noqa: E402

GROUPS = (*DENSE, *EXPERT, "embd", "pos_embd", "intra_dp_cp", "intra_expt_dp", "dp_cp_gtp_remat")
CPU = torch.device("cpu")


def ranks_of(degrees, options, *, rank, names):
    """Return group -> its ranks, as one of eight ranks opens them; a list of groups gives a list."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    try:
        with (
            default_process_group(World(rank=rank, world_size=8), device=CPU),
            megatron_groups(degrees, options) as groups,
        ):
            assert parallel_state.model_parallel_is_initialized() is not options.use_decentralized_pg
            return {name: members(getattr(groups, name)) for name in names}
    finally:
        torch.distributed.destroy_process_group()


def members(group):
    if isinstance(group, list):
        return [members(each) for each in group]
    return None if group is None else torch.distributed.get_process_group_ranks(group)


TP, CP, PP = "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"


@pytest.mark.parametrize(
    ("sizes", "pipeline_before_data"),
    [
        ({TP: 2, PP: 2}, False),
        ({TP: 2, PP: 2}, True),
        ({CP: 2, TP: 2, EP: 4}, True),
        ({PP: 4, EP: 2}, False),
        ({TP: 4, ETP: 2, EP: 2, PP: 2}, True),
    ],
)
def test_decentralized_groups_have_the_ranks_of_the_global_ones(sizes, pipeline_before_data):
    degrees = ParallelDegrees(**sizes)
    global_state = GroupOptions(use_tp_pp_dp_mapping=pipeline_before_data)
    decentralized = replace(global_state, use_decentralized_pg=True)
    for rank in (0, 3, 6):
        expected = ranks_of(degrees, global_state, rank=rank, names=GROUPS)
        assert ranks_of(degrees, decentralized, rank=rank, names=GROUPS) == expected


def test_hierarchical_context_parallelism_gets_its_groups():
    degrees = ParallelDegrees(context_parallel_size=4, hierarchical_context_parallel_sizes=[2, 2])
    if find_spec("einops") is None:
        with pytest.raises(ImportError, match="einops"):  # rule T37 rejects it before a launch
            ranks_of(degrees, GroupOptions(), rank=5, names=["hcp"])
        return
    found = ranks_of(degrees, GroupOptions(), rank=5, names=["cp", "hcp"])
    assert found == {"cp": [4, 5, 6, 7], "hcp": [[4, 5], [5, 7]]}


def test_the_group_for_sharp_is_passed_to_megatron():
    options = GroupOptions(use_sharp=True, sharp_enabled_group="dp_replica")
    with pytest.raises(AssertionError, match="dp_replica group requires num_distributed_optimizer_instances"):
        ranks_of(ParallelDegrees(), options, rank=0, names=[])


def draws(options, **choices):
    """Return numbers that torch and Megatron's tracker draw after seeding in a world of one rank."""
    with (
        default_process_group(World(), device=CPU),
        megatron_groups(ParallelDegrees(), GroupOptions()) as groups,
    ):
        seed_model_parallel(options, groups, **choices)
        numbers = torch.rand(2).tolist()
        with tensor_parallel.get_cuda_rng_tracker().fork():
            return numbers + torch.rand(2).tolist()


def test_the_seed_determines_the_numbers_that_are_drawn():
    first, second, other = (draws(SeedOptions(seed=seed)) for seed in (5, 5, 6))
    assert first == second
    assert not {*first} & {*other}
    assert first[:2] != first[2:]


def test_deterministic_kernels_are_used_on_request():
    try:
        draws(SeedOptions(), deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
