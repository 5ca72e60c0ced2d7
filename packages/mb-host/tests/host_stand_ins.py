"""Functions that run on a rank, where CUDA calls run on the CPU."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def device() -> dict:
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    torch.cuda.synchronize()
    torch.cuda.set_device(0)
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.device(0):
        return {
            "available": torch.cuda.is_available(),
            "current": torch.cuda.current_device(),
            "count": torch.cuda.device_count(),
            "capability": torch.cuda.get_device_capability(),
            "has a name": torch.cuda.get_device_name() == properties.name,
            "memory fits": 0 < free <= total == properties.total_memory,
        }


def devices() -> set[str]:
    """Return the device types of tensors created on, or moved to, CUDA in every notation."""
    here, cuda = torch.ones(2), torch.device("cuda", torch.cuda.current_device())
    tensors = [
        torch.empty(2, device="cuda"),
        torch.zeros(2, device="cuda:0", pin_memory=True),
        torch.tensor([1.0], device=cuda),
        torch.arange(3, device=torch.cuda.current_device()),
        torch.ones_like(here, device="cuda"),
        here.new_zeros(2, device="cuda"),
        here.to("cuda"),
        here.to(cuda, torch.float16),
        here.to(device=0, non_blocking=True),
        here.cuda(),
        here.pin_memory(),
        nn.Linear(2, 2, device="cuda").weight,
        nn.Linear(2, 2).cuda(0).weight,
        nn.Linear(2, 2).to("cuda").weight,
    ]
    return {tensor.device.type for tensor in tensors}


def untouched() -> tuple:
    """Return values that must be unchanged from torch."""
    here = torch.ones(2)
    return here.to(torch.float64).dtype, here.to("meta").device.type, torch.empty(2, device="cpu").device.type


def type_names() -> tuple:
    here = torch.ones(1)
    return here.type(), here.bfloat16().type(), here.int().type(), here.type("torch.cuda.HalfTensor").dtype


def streams() -> dict:
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    with torch.cuda.stream(stream):
        start.record()
        stream.wait_stream(torch.cuda.current_stream())
        stream.wait_event(start)
        end = torch.cuda.current_stream().record_event(end)
    stream.synchronize()
    return {
        "done": stream.query() and end.query(),
        "forward": start.elapsed_time(end) >= 0.0,
        "capturing": torch.cuda.is_current_stream_capturing(),
        "priorities": torch.cuda.Stream.priority_range(),
    }


def elapsed_without_record() -> float:
    return torch.cuda.Event().elapsed_time(torch.cuda.Event())


def random_numbers() -> bool:
    """Return whether seeding, reading and setting the device's state determine the random numbers."""
    torch.cuda.manual_seed(5)
    state, all_states = torch.cuda.get_rng_state(device=0), torch.cuda.get_rng_state_all()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    second = torch.rand(3)
    torch.cuda.set_rng_state_all(all_states)
    third = torch.rand(3)
    torch.manual_seed(5)
    fourth = torch.rand(3)
    torch.cuda.default_generators[0].manual_seed(5)
    fifth = torch.rand(3)
    return all(torch.equal(first, other) for other in (second, third, fourth, fifth))


def compiled() -> tuple:
    @torch.compile
    def bare(x):
        return x + 1

    @torch.compile(mode="max-autotune")
    def with_options(x):
        return x + 2

    return bare(1), with_options(1), torch.compile(max) is max


def sharded() -> tuple:
    """Return the devices of CUDA meshes, and the difference of a sharded layer's gradient from an unsharded one's."""
    world = torch.distributed.distributed_c10d._get_default_group()
    meshes = [
        init_device_mesh("cuda", (2,)),
        DeviceMesh("cuda", [0, 1]),
        DeviceMesh.from_group(world, "cuda"),
        DeviceMesh.from_group([world], device_type="cuda", mesh=[0, 1], mesh_dim_names=("dp",)),
    ]
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 3, 4)
    layer(inputs).square().mean().backward()
    whole, layer.weight.grad = layer.weight.grad, None
    fully_shard(layer, mesh=meshes[2])
    layer(inputs[torch.distributed.get_rank()]).square().mean().backward()
    part = layer.weight.grad.full_tensor()
    return [mesh.device_type for mesh in meshes], (part - whole).abs().max().item()
