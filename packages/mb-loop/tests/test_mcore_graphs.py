"""Order of the calls that create and delete CUDA graphs. The capture itself needs a GPU."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
pytest.importorskip("mb_host")

from megatron.core import full_cuda_graph  # noqa: E402
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader  # noqa: E402
from megatron.core.num_microbatches_calculator import get_num_microbatches  # noqa: E402

from mb_loop.graphs import megatron as graphs  # noqa: E402
from mb_loop.graphs.capture import GraphCapture  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection  # noqa: E402
from mb_loop.step.hooks import ForwardPreHooks  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Model:
    cuda_graph_impl: str = "none"
    cuda_graph_modules: object = None
    cuda_graph_warmup_steps: int = 2
    seq_length: int = 256


def config_of(kind, **train):
    sizes = {"global_batch_size": 8, "micro_batch_size": 2, **train}
    return LoopConfig(train=TrainSection(**sizes), model=Model(cuda_graph_impl=kind))


class Helper:
    """Stub of Megatron's CUDA graph helper that records its calls."""

    def __init__(self, **built_of):
        self.built_of, self.log = built_of, []

    def create_cudagraphs(self):
        self.log.append("capture")

    def cuda_graph_set_manual_hooks(self):
        self.log.append("manual hooks")

    def graphs_created(self):
        return "capture" in self.log and not self.built_of["config"].empty

    def delete_cuda_graphs(self):
        self.log.append("delete")


def layer_graphs(config, *, transformer=None, helper=Helper):
    parts = {"chunks": ["chunk"], "optimizer": "optimizer", "transformer": transformer, "groups": "groups"}
    return graphs.build_layer_graphs(config, SimpleNamespace(**parts), helper=helper)


@pytest.fixture
def gpu(monkeypatch):
    """Make torch report an available GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)


@pytest.mark.parametrize(("empty", "end"), [(False, ["capture", "delete"]), (True, ["capture"])])
def test_graphs_of_layers_are_captured_after_their_warm_up_and_deleted_if_there_are_any(gpu, empty, end):
    config, transformer = config_of("transformer_engine"), SimpleNamespace(empty=empty)
    found = layer_graphs(config, transformer=transformer)
    helper = found._helper
    capture = GraphCapture(found, hooks=ForwardPreHooks([], used=False))
    for _ in range(2):
        capture.before_step()
    assert helper.log == []
    for _ in range(2):
        capture.before_step()
    capture.end()
    assert helper.log == end
    assert helper.built_of == {
        "model": ["chunk"],
        "config": transformer,
        "seq_length": 256,
        "micro_batch_size": 2,
        "optimizers": ["optimizer"],
        "pg_collection": "groups",
    }


def test_graphs_of_layers_are_deleted_only_after_a_capture(gpu):
    found = layer_graphs(config_of("transformer_engine"), transformer=SimpleNamespace(empty=False))
    found.delete()
    found.capture()
    found.set_manual_hooks()
    found.delete()
    assert found._helper.log == ["capture", "manual hooks", "delete"]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Model(), "none"),
        (Model(cuda_graph_impl="transformer_engine"), "transformer_engine"),
        (Model(cuda_graph_impl="full_iteration"), "full_iteration"),
        (Model(cuda_graph_impl="local", cuda_graph_modules=["full_iteration"]), "full_iteration"),
        (Model(cuda_graph_impl="local", cuda_graph_modules="attn"), "local"),
    ],
)
def test_the_kind_of_graphs_follows_the_section(gpu, model, kind):
    assert graphs.graph_kind(model) == kind


@pytest.mark.parametrize("kind", ["transformer_engine", "full_iteration"])
def test_without_a_gpu_nothing_is_captured(kind):
    config = config_of(kind)
    with graphs.graph_resources(config), graphs.wrapping_stream(config.model):
        assert graphs.graph_kind(config.model) == "none"
        assert layer_graphs(config) is None
        assert graphs.capture_full_iteration(len, config.model, transformer=None) is len


def test_training_and_evaluation_have_separate_warm_ups_and_graphs(gpu):
    calls = []

    def schedule(**keywords):
        calls.append((keywords["forward_only"], next(keywords["data_iterator"][0])["tokens"]))
        return "result"

    transformer = SimpleNamespace(cuda_graph_use_single_mempool=False)
    model = config_of("full_iteration").model
    trained = SimpleNamespace(
        schedule={"forward_backward_func": schedule, "pg_collection": "groups"}, transformer=transformer
    )
    captured = graphs.captured_schedule(SimpleNamespace(model=model), trained)
    assert captured["pg_collection"] == "groups"
    wrapped = captured["forward_backward_func"]
    arguments = {"model": ["chunk"], "num_microbatches": 1, "seq_length": 4}
    try:
        for forward_only in (False, True, False):
            batches = iter([{"tokens": 7}])
            assert wrapped(**arguments, forward_only=forward_only, data_iterator=batches) == "result"
        assert calls == [(False, 7), (True, 7), (False, 7)]
        assert FullCudaGraphWrapper.curr_iteration == {"training": 2, "validation": 1}
    finally:
        graphs.drop_full_iteration_graphs()
    assert FullCudaGraphWrapper.curr_iteration == {"training": 0, "validation": 0}
    assert StaticBufferLoader.static_buffers == {"training": [], "validation": []}


def test_a_graph_of_the_full_iteration_is_dropped_at_the_end_of_the_run(gpu):
    config = config_of("full_iteration")
    with graphs.graph_resources(config):
        transformer = SimpleNamespace(cuda_graph_use_single_mempool=True)
        inner = graphs.capture_full_iteration(print, config.model, transformer=transformer)._schedule
        assert (type(inner), inner.cuda_graph_warmup_steps) == (FullCudaGraphWrapper, 2)
        FullCudaGraphWrapper.curr_iteration["training"] = 9
        StaticBufferLoader.static_buffers["training"].append({})
    assert FullCudaGraphWrapper.curr_iteration["training"] == 0
    assert StaticBufferLoader.static_buffers == {"training": [], "validation": []}
    assert layer_graphs(config) is None


class ReplayedGraph:
    """Stub of a CUDA graph with the methods that Megatron's wrapper calls."""

    replays = 0

    def register_generator_state(self, state):
        """Accept the state of a generator."""

    def replay(self):
        """Count the replay."""
        ReplayedGraph.replays += 1


def test_a_growing_batch_is_captured_again_with_megatrons_own_wrapper(gpu, monkeypatch):
    synchronised, captured = [], []
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "CUDAGraph", ReplayedGraph)
    monkeypatch.setattr(cuda, "synchronize", lambda: synchronised.append(len(captured)))
    monkeypatch.setattr(cuda, "graph", lambda *_, **options: nullcontext(captured.append(options["pool"])))
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(full_cuda_graph, "get_all_rng_states", dict)
    monkeypatch.setattr(full_cuda_graph, "get_shared_capture_stream", lambda: None)
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: object())

    def schedule(*, num_microbatches, data_iterator, **_others):
        return [next(data_iterator[0])["tokens"] for _ in range(num_microbatches)]

    transformer = SimpleNamespace(cuda_graph_use_single_mempool=True)
    model = config_of("full_iteration").model
    wrapped = graphs.capture_full_iteration(
        schedule, replace(model, cuda_graph_warmup_steps=2), transformer=transformer
    )
    try:
        sizes = []
        for number in (1, 1, 1, 1, 3, 3, 3, 3):
            tokens = iter([{"tokens": each} for each in range(number)])
            given = {"num_microbatches": number, "forward_only": False, "data_iterator": tokens}
            sizes.append(len(wrapped(model=["chunk"], seq_length=4, **given)))
        assert sizes == [1, 1, 1, 1, 3, 3, 3, 3]
        assert len(captured) == len(set(captured)) == 2  # one memory pool per graph
        assert ReplayedGraph.replays == 4
        assert 1 in synchronised  # the device is synchronized before the first graph is deleted
    finally:
        graphs.drop_full_iteration_graphs()
    assert graphs.CAPTURED == {}


@pytest.mark.parametrize(
    ("train", "number"),
    [
        ({}, 2),
        ({"rampup_batch_size": [4, 4, 64]}, 2),
        ({"step_batch_size_schedule": "0:8 64K:16"}, 4),
        ({"global_batch_size": 7, "decrease_batch_size_if_needed": True}, 1),
    ],
)
def test_the_helper_captures_for_the_largest_step(train, number):
    config = replace(config_of("transformer_engine", **train), data_parallel_size=2)
    with graphs.largest_microbatch_count(config):
        assert get_num_microbatches() == number


def test_the_number_of_microbatches_is_set_while_the_run_lasts(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "_new_stream", lambda: None)
    with graphs.graph_resources(config_of("transformer_engine")):
        assert get_num_microbatches() == 4
    with pytest.raises(AttributeError):
        get_num_microbatches()
