"""Return values of torch's CUDA functions on the CPU."""

import host_stand_ins
import pytest

from mb_host import RankFailedError


def test_there_is_one_device_and_it_is_not_available(one_rank):
    [values] = one_rank.run(host_stand_ins.device)
    assert values == {
        "available": False,
        "current": 0,
        "count": 1,
        "capability": (0, 0),
        "has a name": True,
        "memory fits": True,
    }


def test_tensors_on_cuda_are_on_the_cpu(one_rank):
    assert one_rank.run(host_stand_ins.devices) == [{"cpu"}]


def test_the_rest_of_torch_is_unchanged(one_rank):
    [(dtype, meta, cpu)] = one_rank.run(host_stand_ins.untouched)
    assert (str(dtype), meta, cpu) == ("torch.float64", "meta", "cpu")


def test_tensor_types_have_the_names_of_a_gpu(one_rank):
    [(*names, dtype)] = one_rank.run(host_stand_ins.type_names)
    assert names == ["torch.cuda.FloatTensor", "torch.cuda.BFloat16Tensor", "torch.IntTensor"]
    assert str(dtype) == "torch.float16"


def test_streams_have_no_pending_work(one_rank):
    [values] = one_rank.run(host_stand_ins.streams)
    assert values == {"done": True, "forward": True, "capturing": False, "priorities": (0, 0)}


def test_time_between_events_that_were_not_recorded_is_rejected(one_rank):
    with pytest.raises(
        RankFailedError, match=r"RuntimeError: HostEvent.elapsed_time: one of the events was not recorded"
    ):
        one_rank.run(host_stand_ins.elapsed_without_record)


def test_host_and_device_draw_from_one_generator(one_rank):
    assert one_rank.run(host_stand_ins.random_numbers) == [True]


def test_compiled_functions_are_the_functions(one_rank):
    assert one_rank.run(host_stand_ins.compiled) == [(2, 3, True)]


def test_layers_are_sharded_over_cpu_processes(two_ranks):
    for kinds, difference in two_ranks.run(host_stand_ins.sharded):
        assert kinds == ["cpu"] * 4
        assert difference < 1e-6
