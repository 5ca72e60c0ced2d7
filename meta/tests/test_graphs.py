"""Order of the calls that create and delete CUDA graphs. The capture itself needs a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import mb_host

mb_host.install()  # must run before megatron is imported

from megatron.core import full_cuda_graph  # noqa: E402
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader  # noqa: E402
from megatron.core.num_microbatches_calculator import get_num_microbatches  # noqa: E402

from mb_loop.graphs import GraphCapture  # noqa: E402
from mb_loop.hooks import ForwardPreHooks  # noqa: E402
from mb_trainer import graphs  # noqa: E402
from mb_trainer.recipes import gpt_tiny  # noqa: E402


def config_of(kind, **model):
    config = gpt_tiny()
    config.model.cuda_graph_impl, config.model.cuda_graph_warmup_steps = kind, 2
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


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


@pytest.fixture
def gpu(monkeypatch):
    """Make torch report an available GPU."""
    monkeypatch.setattr(graphs.torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(("empty", "end"), [(False, ["capture", "delete"]), (True, ["capture"])])
def test_graphs_of_layers_are_captured_after_their_warm_up_and_deleted_if_there_are_any(gpu, empty, end):
    trainee = SimpleNamespace(
        chunks=["chunk"], optimizer="optimizer", transformer=SimpleNamespace(empty=empty)
    )
    helpers = []

    def helper(**built_of):
        helpers.append(Helper(**built_of))
        return helpers[0]

    config = config_of("transformer_engine")
    found = graphs.graphs_of_layers(config, trainee, groups="groups", helper=helper)
    capture = GraphCapture(found, hooks=ForwardPreHooks([], used=False), start_step=5)
    for step in (5, 6):
        capture.before_step(step)
    assert helpers[0].log == []
    for step in (7, 8):
        capture.before_step(step)
    capture.end()
    assert helpers[0].log == end
    assert helpers[0].built_of == {
        "model": ["chunk"],
        "config": trainee.transformer,
        "seq_length": config.model.seq_length,
        "micro_batch_size": config.train.micro_batch_size,
        "optimizers": ["optimizer"],
        "pg_collection": "groups",
    }


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"kind": "none"}, "none"),
        ({"kind": "transformer_engine"}, "transformer_engine"),
        ({"kind": "full_iteration"}, "full_iteration"),
        ({"kind": "local", "cuda_graph_modules": ["full_iteration"]}, "full_iteration"),
    ],
)
def test_what_is_captured(gpu, model, kind):
    config = config_of(**model)
    assert graphs.wanted(config) == kind


def test_without_a_gpu_nothing_is_captured():
    for kind in ("transformer_engine", "full_iteration"):
        config = config_of(kind)
        assert graphs.graphs_of_layers(config, None, groups=None) is None
        assert graphs.in_one_graph(len, config, None) is len


def test_training_and_evaluation_have_warm_ups_and_graphs_of_their_own(gpu):
    calls = []

    def schedule(**keywords):
        calls.append((keywords["forward_only"], next(keywords["data_iterator"][0])["tokens"]))
        return "result"

    transformer = SimpleNamespace(cuda_graph_use_single_mempool=False)
    wrapped = graphs.in_one_graph(schedule, config_of("full_iteration"), transformer)
    asked = {"model": ["chunk"], "num_microbatches": 1, "seq_length": 4}
    try:
        for forward_only in (False, True, False):
            batches = iter([{"tokens": 7}])
            assert wrapped(**asked, forward_only=forward_only, data_iterator=batches) == "result"
        assert calls == [(False, 7), (True, 7), (False, 7)]
        assert FullCudaGraphWrapper.curr_iteration == {"training": 2, "validation": 1}
    finally:
        graphs.forget_graph_of_step()
    assert FullCudaGraphWrapper.curr_iteration == {"training": 0, "validation": 0}
    assert StaticBufferLoader.static_buffers == {"training": [], "validation": []}


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
    cuda = graphs.torch.cuda
    monkeypatch.setattr(cuda, "CUDAGraph", ReplayedGraph)
    monkeypatch.setattr(cuda, "synchronize", lambda: synchronised.append(len(captured)))
    monkeypatch.setattr(cuda, "graph", lambda *_, **options: nullcontext(captured.append(options["pool"])))
    monkeypatch.setattr(graphs.torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(full_cuda_graph, "get_all_rng_states", dict)
    monkeypatch.setattr(full_cuda_graph, "get_shared_capture_stream", lambda: None)
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: object())

    def schedule(*, num_microbatches, data_iterator, **_others):
        return [next(data_iterator[0])["tokens"] for _ in range(num_microbatches)]

    transformer = SimpleNamespace(cuda_graph_use_single_mempool=True)
    wrapped = graphs.in_one_graph(schedule, config_of("full_iteration"), transformer)
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
        graphs.forget_graph_of_step()
    assert graphs.CAPTURED == {}


@pytest.mark.parametrize(
    ("train", "number"),
    [
        ({"rampup_batch_size": [4, 4, 64]}, 2),
        ({"step_batch_size_schedule": "0:8 64K:16"}, 4),
        ({"global_batch_size": 7, "decrease_batch_size_if_needed": True}, 1),
    ],
)
def test_the_helper_captures_for_the_largest_step(train, number):
    config = gpt_tiny()
    config.train.global_batch_size, config.train.micro_batch_size = 8, 2
    config.data_parallel_size = 2
    for name, value in train.items():
        setattr(config.train, name, value)
    with graphs.counted_microbatches(config):
        assert get_num_microbatches() == number


def test_the_helper_finds_the_number_of_microbatches_while_the_run_lasts():
    config = gpt_tiny()
    config.train.global_batch_size, config.train.micro_batch_size = 8, 2
    config.data_parallel_size = 2
    with graphs.counted_microbatches(config):
        assert get_num_microbatches() == 2
