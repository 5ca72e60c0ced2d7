"""Recapture of full-iteration graphs when the number of microbatches changes."""

from mb_loop.graphs.recapture import RecaptureOnChange


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
