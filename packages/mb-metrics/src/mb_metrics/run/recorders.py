"""Callbacks that record a run: its metrics, its events and its memory. Adapter for torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mb_metrics.norms.tensors import TensorNorms, build_tensor_norms
from mb_metrics.recorder.recorded_steps import Value
from mb_metrics.run.event_recorder import EventRecorder
from mb_metrics.run.memory_report import MemoryReport, build_memory_report
from mb_metrics.run.output import MetricsOutput
from mb_metrics.run.sections import MeasuredModel, MetricsSettings
from mb_metrics.run.training import build_training_metrics
from mb_metrics.run.training_context import SampleSizes
from mb_metrics.run.training_metrics import TrainingMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorders:
    """Recorders of this rank."""

    metrics: TrainingMetrics
    events: EventRecorder | None = None
    """Writer of events.jsonl; None on every rank but the one that writes."""
    memory: MemoryReport | None = None
    """Report of the memory; None if metrics are disabled."""
    tensor_norms: TensorNorms | None = None
    """Writer of tensor_norms.jsonl; None if no step is chosen."""

    @property
    def callbacks(self) -> list[object]:
        """Callbacks of the recorders, in the order of registration."""
        return [
            each for each in (self.metrics, self.events, self.memory, self.tensor_norms) if each is not None
        ]


@contextmanager
def record_run(
    config: MetricsSettings,
    model: MeasuredModel,
    *,
    output: MetricsOutput | None,
    start_step: int = 0,
    sample_sizes: SampleSizes | None = None,
    flops: float | None = None,
    step_values: Sequence[Callable[[], Mapping[str, Value]]] = (),
    print_line: Callable[[str], None] = print,
) -> Iterator[RunRecorders]:
    """Record a training run while the block runs, as configured. Collective; raises as `build_training_metrics`.

    The stop of the run is written when the block ends, so that an evaluation after training precedes it.

    Args:
        config: Sections of the run.
        model: The wrapped model.
        output: Destinations; None on every rank but the one that writes.
        start_step: Step of the checkpoint that the run resumes from; 0 without one.
        sample_sizes: Average sizes of training samples, if they differ in length.
        flops: As for `build_training_metrics`.
        step_values: Functions that return host metrics of each step.
        print_line: Prints a line of the memory report.
    """
    with ExitStack() as stack:
        # The order matters. Events come first, because they read the last row of metrics.jsonl before the metrics
        # drop rows of it; they are entered after the metrics, so that at the end the stop of the run is written first
        # and the metrics are closed after it.
        events = None if output is None else output.event_recorder()
        metrics = stack.enter_context(
            build_training_metrics(
                config,
                model,
                output=output,
                start_step=start_step,
                sample_sizes=sample_sizes,
                flops=flops,
                step_values=step_values,
            )
        )
        if events is not None:
            stack.enter_context(events)
        memory = build_memory_report(config, model, print_line=print_line)
        folder = None if output is None else output.folder
        norms = build_tensor_norms(config, model, folder=folder)
        yield RunRecorders(metrics=metrics, events=events, memory=memory, tensor_norms=norms)
