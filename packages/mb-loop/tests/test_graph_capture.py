"""Capture of graphs after the warm-up, and again when the number of microbatches changes."""

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop.graphs.capture import GraphCapture, RecaptureOnChange  # noqa: E402
from mb_loop.step.hooks import ForwardPreHooks  # noqa: E402


class Chunk:
    """Hooks that can be toggled."""

    def __init__(self, on):
        self.remove_forward_pre_hook_handles = {"module": 1} if on else {}

    def enable_forward_pre_hook(self):
        self.remove_forward_pre_hook_handles["module"] = 1

    def disable_forward_pre_hook(self, param_sync=True):
        self.remove_forward_pre_hook_handles.clear()


class Graphs:
    def __init__(self, warmup_steps, chunk):
        self.warmup_steps, self.chunk, self.log = warmup_steps, chunk, []

    def capture(self):
        self.log.append("capture, hooks " + ("on" if self.chunk.remove_forward_pre_hook_handles else "off"))

    def set_manual_hooks(self):
        self.log.append("manual hooks")

    def delete(self):
        self.log.append("delete")


def test_graphs_are_captured_once_after_the_warm_up_with_hooks_off():
    chunk = Chunk(on=True)
    graphs = Graphs(2, chunk)
    capture = GraphCapture(graphs, hooks=ForwardPreHooks([chunk], used=True))
    for _ in range(4):
        capture.before_step()
    assert graphs.log == ["capture, hooks off", "manual hooks"]
    capture.end()
    assert graphs.log[-1] == "delete"


def test_a_step_whose_data_is_discarded_is_no_part_of_the_warm_up():
    model = torch.nn.Linear(1, 1)
    graphs, trained = Graphs(2, Chunk(on=False)), []
    graphs.capture = lambda: graphs.log.append(f"capture after {trained}")

    def forward_step(iterator, model):
        number = next(iterator)
        trained.append(number)
        return model(torch.ones(1)).sum(), lambda output: (output, {"loss": output.detach()})

    parts = mb_loop.TrainParts(
        forward_step_func=forward_step,
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        train_data_iterator=iter(range(1, 6)),
        cuda_graphs=graphs,
    )
    mb_loop.train(parts, mb_loop.LoopState.of(train_iters=5, iterations_to_skip=[1, 3]))
    assert graphs.log == ["capture after [2, 4]", "delete"]


def test_a_capture_without_warm_up_gets_its_hooks_when_they_are_enabled():
    chunk = Chunk(on=False)
    graphs = Graphs(0, chunk)
    capture = GraphCapture(graphs, hooks=ForwardPreHooks([chunk], used=True))
    capture.before_step()
    chunk.enable_forward_pre_hook()
    capture.before_step()
    capture.before_step()
    assert graphs.log == ["capture, hooks off", "manual hooks"]


class Graph:
    """Schedule that captures the second call of a stage and replays it afterwards."""

    def __init__(self):
        self.calls, self.microbatches = {}, {}

    def __call__(self, *, num_microbatches, forward_only, **_others):
        stage = "validation" if forward_only else "training"
        self.calls[stage] = self.calls.get(stage, 0) + 1
        if self.calls[stage] == 2:
            self.microbatches[stage] = num_microbatches
        return self.microbatches.get(stage, num_microbatches)

    def drop_graph(self, stage):
        self.calls.pop(stage)
        self.microbatches.pop(stage, None)


def trained_on(schedule, numbers, *, forward_only=False):
    return [schedule(num_microbatches=n, forward_only=forward_only, seq_length=8) for n in numbers]


RAMP = [2, 2, 2, 4, 4, 4, 4, 1, 1]


def test_a_graph_replays_the_number_that_it_was_captured_with():
    assert trained_on(Graph(), RAMP) == [2] * 9


def test_every_step_of_a_growing_batch_has_its_microbatches():
    graph = Graph()
    assert trained_on(RecaptureOnChange(graph, drop_graph=graph.drop_graph, captured={}), RAMP) == RAMP
    assert graph.microbatches == {"training": 1}


def test_training_and_evaluation_are_captured_separately():
    graph, dropped = Graph(), []
    schedule = RecaptureOnChange(graph, drop_graph=dropped.append, captured={})
    trained_on(schedule, [2, 2])
    trained_on(schedule, [3, 3], forward_only=True)
    trained_on(schedule, [2])
    assert (dropped, graph.microbatches) == ([], {"training": 2, "validation": 3})


def test_a_second_schedule_of_the_same_graphs_shares_the_captured_numbers():
    graph, captured = Graph(), {}
    for number in (2, 3):
        schedule = RecaptureOnChange(graph, drop_graph=graph.drop_graph, captured=captured)
        assert trained_on(schedule, [number, number], forward_only=True) == [number, number]
