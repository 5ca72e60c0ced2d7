"""Device and default process group of a rank, and seeds of libraries."""

import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from mb_launch import (  # noqa: E402
    World,
    WorldError,
    barrier,
    default_process_group,
    default_store,
    pick_device,
    seed_libraries,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("mapped", "index"), [(True, 0), (False, 3)])
def test_a_launcher_that_maps_gpus_gives_each_rank_the_first(monkeypatch, mapped, index):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    device = pick_device(World(rank=5, local_rank=3, world_size=8), external_mapping=mapped)
    assert (device, taken) == (torch.device("cuda", index), [torch.device("cuda", index)])


def test_a_rank_without_a_gpu_is_an_error_before_cuda_is_initialised(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("CUDA is initialised"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(WorldError, match=r"is 1, but this process sees 1 GPU \(CUDA_VISIBLE_DEVICES=3\)"):
        pick_device(World(rank=1, world_size=2, local_rank=1))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert pick_device(World(rank=1, world_size=2, local_rank=1), external_mapping=True).index == 0


def test_without_a_gpu_the_device_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device(World(rank=1, world_size=2, local_rank=1)) == CPU


def test_the_first_collective_and_every_barrier_name_the_gpu(monkeypatch):
    calls = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda **given: calls.append(given["backend"])
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: calls[0])
    monkeypatch.setattr(torch.distributed, "barrier", lambda **given: calls.append(given))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    with default_process_group(World(), device=torch.device("cuda", 5)):
        barrier()
    assert calls == ["nccl", {"device_ids": [5]}, {"device_ids": [5]}]
    calls.clear()
    with default_process_group(World(), device=CPU):
        barrier()
    assert calls == ["gloo", {}, {}]


def test_the_group_is_closed_at_the_end_and_one_that_is_open_is_kept():
    with default_process_group(World(), device=CPU):
        with default_process_group(World(), device=CPU):
            assert torch.distributed.get_world_size() == 1
        assert torch.distributed.is_initialized()
    assert not torch.distributed.is_initialized()


def test_the_ranks_share_a_store_and_a_single_rank_has_none():
    with default_process_group(World(), device=CPU):
        assert default_store(World()) is None
        store = default_store(World(world_size=2))
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_several_processes_without_an_address_are_an_error(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with (
        pytest.raises(WorldError, match="MASTER_ADDR and MASTER_PORT: are not set"),
        default_process_group(World(world_size=2), device=CPU),
    ):
        pass


def drawn(seed):
    seed_libraries(seed)
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_python_numpy_and_torch_are_seeded():
    first, second, other = drawn(5), drawn(5), drawn(6)
    assert first == second
    assert not {*first} & {*other}


def test_a_group_whose_first_barrier_fails_is_closed(monkeypatch):
    def fail(*, device):
        raise TimeoutError

    monkeypatch.setattr("mb_launch.groups.default_group.barrier", fail)
    with pytest.raises(TimeoutError), default_process_group(World(), device=CPU):
        pass
    assert not torch.distributed.is_initialized()
