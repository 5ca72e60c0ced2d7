"""Process groups of a layout, seen by each of eight ranks without starting them, and seeds."""

from importlib.util import find_spec

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

import mb_host

mb_host.install()  # before megatron is imported

from megatron.core import parallel_state  # noqa: E402

from mb_trainer.groups import barrier, pick_device, process_groups, processes_joined, seed_libraries  # noqa: E402
from mb_trainer.handed_groups import DENSE, EXPERT  # noqa: E402
from mb_trainer.processes import World, WorldError  # noqa: E402
from mb_trainer.recipes import gpt_tiny  # noqa: E402

GROUPS = (*DENSE, *EXPERT, "embd", "pos_embd", "intra_dp_cp", "intra_expt_dp", "dp_cp_gtp_remat")


def ranks_of(config, *, rank, world_size, names):
    """Return group -> its ranks, as one rank of several opens them; a list of groups gives a list."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        with process_groups(
            World(rank=rank, world_size=world_size), config, device=torch.device("cpu")
        ) as groups:
            found = {name: getattr(groups, name) for name in names}
            own = parallel_state.model_parallel_is_initialized()
            assert own is not config.dist.use_decentralized_pg
            return {name: members(group) for name, group in found.items()}
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
def test_groups_that_are_handed_over_are_those_of_megatrons_own_state(sizes, pipeline_before_data):
    config = gpt_tiny()
    config.dist.use_gloo_process_groups = False
    config.dist.use_tp_pp_dp_mapping = pipeline_before_data
    for name, size in sizes.items():
        setattr(config.model, name, size)
    for rank in (0, 3, 6):
        config.dist.use_decentralized_pg = False
        own = ranks_of(config, rank=rank, world_size=8, names=GROUPS)
        config.dist.use_decentralized_pg = True
        assert ranks_of(config, rank=rank, world_size=8, names=GROUPS) == own


def test_hierarchical_context_parallelism_gets_its_groups():
    config = gpt_tiny()
    config.dist.use_gloo_process_groups = False
    config.model.context_parallel_size = 4
    config.model.cp_comm_type = "a2a+p2p"
    config.model.hierarchical_context_parallel_sizes = [2, 2]
    if find_spec("einops") is None:
        with pytest.raises(ImportError, match="einops"):  # rule T37 says it before
            ranks_of(config, rank=5, world_size=8, names=["hcp"])
        return
    found = ranks_of(config, rank=5, world_size=8, names=["cp", "hcp"])
    assert found == {"cp": [4, 5, 6, 7], "hcp": [[4, 5], [5, 7]]}


def test_the_group_to_reduce_in_the_network_is_megatrons_business():
    config = gpt_tiny()
    config.dist.use_gloo_process_groups = False
    config.dist.use_sharp, config.dist.sharp_enabled_group = True, "dp_replica"
    with pytest.raises(AssertionError, match="dp_replica group requires num_distributed_optimizer_instances"):
        ranks_of(config, rank=0, world_size=8, names=[])


@pytest.mark.parametrize(("mapped", "index"), [(True, 0), (False, 3)])
def test_a_launcher_that_maps_gpus_gives_each_rank_the_first(monkeypatch, mapped, index):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    device = pick_device(World(rank=5, local_rank=3, world_size=8), external_mapping=mapped)
    assert (device, taken) == (torch.device("cuda", index), [torch.device("cuda", index)])


@pytest.mark.parametrize(
    ("wanted", "gpu", "threads", "mode"),
    [
        (True, False, 1, "error"),
        (True, True, 2, "error"),
        (False, False, 1, "default"),
        (False, False, 2, "warn"),
        (False, True, 2, "default"),
    ],
)
def test_deterministic_kernels_are_taken_on_request_and_on_the_cpu(monkeypatch, wanted, gpu, threads, mode):
    """On the CPU several threads need them to add by index in a fixed order; one thread does anyway."""
    config = gpt_tiny()
    config.model.deterministic_mode = wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    try:
        seed_libraries(config, 1)
        assert torch.get_deterministic_debug_mode() == {"default": 0, "warn": 1, "error": 2}[mode]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_a_process_without_a_gpu_of_its_own_is_refused_before_cuda_is_touched(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("CUDA is touched"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(WorldError, match=r"is 1, but this process sees 1 GPU \(CUDA_VISIBLE_DEVICES=3\)"):
        pick_device(World(rank=1, world_size=2, local_rank=1))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert pick_device(World(rank=1, world_size=2, local_rank=1), external_mapping=True).index == 0


def test_the_first_collective_and_every_barrier_name_the_gpu(monkeypatch):
    calls = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda **given: calls.append(given["backend"])
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: calls[0])
    monkeypatch.setattr(torch.distributed, "barrier", lambda **given: calls.append(given))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    with processes_joined(World(), gpt_tiny(), device=torch.device("cuda", 5)):
        barrier()
    assert calls == ["nccl", {"device_ids": [5]}, {"device_ids": [5]}]
    calls.clear()
    with processes_joined(World(), gpt_tiny(), device=torch.device("cpu")):
        barrier()
    assert calls == ["gloo", {}, {}]
