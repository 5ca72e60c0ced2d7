"""CUDA graphs: what captures them, by the section, and what is left behind. No GPU: Megatron's helper is a stand-in."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader
from megatron.core.num_microbatches_calculator import get_num_microbatches

from mb_trainer import graphs
from mb_trainer.recipes import gpt_tiny

TRAINEE = SimpleNamespace(chunks=["chunk"], transformer="config", optimizer="optimizer")


class Helper:
    """Notes what is asked of it."""

    def __init__(self, **arguments):
        self.arguments, self.calls, self.created = arguments, [], False

    def create_cudagraphs(self):
        self.calls.append("create")
        self.created = True

    def cuda_graph_set_manual_hooks(self):
        self.calls.append("hooks")

    def graphs_created(self):
        return self.created

    def delete_cuda_graphs(self):
        self.calls.append("delete")


@pytest.fixture
def gpu(monkeypatch):
    """A process that has a GPU, as far as torch says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)


def section(implementation):
    config = gpt_tiny()
    config.model.cuda_graph_impl = implementation
    config.data_parallel_size = 1
    return config


def test_without_a_gpu_nothing_is_captured():
    for implementation in ("transformer_engine", "full_iteration"):
        config = section(implementation)
        with graphs.graphs_of_this_process(config), graphs.stream_of_wrapping(config):
            assert graphs.wanted(config) == "none"
            assert graphs.graphs_of_layers(config, TRAINEE, groups="groups", helper=Helper) is None
            assert graphs.in_one_graph(print, config, None) is print


def test_graphs_of_layers_are_megatrons_helper(gpu):
    config = section("transformer_engine")
    found = graphs.graphs_of_layers(config, TRAINEE, groups="groups", helper=Helper)
    helper = found._helper
    assert helper.arguments == {
        "model": ["chunk"],
        "config": "config",
        "seq_length": 256,
        "micro_batch_size": 8,
        "optimizers": ["optimizer"],
        "pg_collection": "groups",
    }
    assert found.warmup_steps == 3
    found.delete()
    found.capture()
    found.set_manual_hooks()
    found.delete()
    assert helper.calls == ["create", "hooks", "delete"]
    assert graphs.in_one_graph(print, config, None) is print


def test_megatrons_helper_can_ask_for_the_number_of_microbatches(gpu):
    config = section("transformer_engine")
    config.train.micro_batch_size = 2
    with graphs.graphs_of_this_process(config):
        assert get_num_microbatches() == 4
    with pytest.raises(AttributeError):
        get_num_microbatches()


def test_a_graph_of_the_step_is_megatrons_wrapper_and_is_forgotten(gpu):
    config = section("full_iteration")
    with graphs.graphs_of_this_process(config):
        wrapped = graphs.in_one_graph(print, config, SimpleNamespace(cuda_graph_use_single_mempool=True))
        inner = wrapped._schedule
        assert (type(inner), inner.cuda_graph_warmup_steps) == (FullCudaGraphWrapper, 3)
        FullCudaGraphWrapper.curr_iteration["training"] = 9
        StaticBufferLoader.static_buffers["training"].append({})
    assert FullCudaGraphWrapper.curr_iteration["training"] == 0
    assert StaticBufferLoader.static_buffers == {"training": [], "validation": []}
    assert graphs.graphs_of_layers(config, TRAINEE, groups="groups", helper=Helper) is None
