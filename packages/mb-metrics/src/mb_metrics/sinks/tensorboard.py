"""Adapter for TensorBoard: event files, written by tensorboard's writer, without torch.

Install it with `pip install "mb-metrics[tensorboard]"`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from mb_metrics.names import VERSUS_SAMPLES, has_samples_axis
from mb_metrics.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.sink import Sink


class TensorBoardSink(Sink):
    """Sink that writes each metric with its name as tag, and ungrouped metrics also as "<name> vs samples".

    Resuming rewrites the event files of the folder without the steps that the run repeats. TensorBoard's restart
    marker is not used, because it compares samples with steps and would remove later values on the sample axis.

    Args:
        folder: Folder of the event files; it is created. TensorBoard shows it as one run.
        resume_step: The last step to keep: a step before the first one (0, or -1 if steps count from 0) starts empty,
            None appends to the existing files.
        queue_size: Capacity of the event queue of the writer thread; `write_rows` blocks when it is full.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        resume_step: int | None = None,
        queue_size: int = 1000,
    ) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if resume_step is not None:
            drop_later_steps(folder, resume_step)
        self._writer = EventFileWriter(str(folder), max_queue_size=queue_size)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write the points of the next steps."""
        for row in rows:
            self._write(row.step, row.time, row.consumed_samples, row.values)

    def write_interval(self, interval: LogInterval) -> None:
        """Flush to disk; the last row of an interval contains its rates."""
        self._writer.flush()

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write the points of an evaluation and flush to disk."""
        self._write(evaluation.step, evaluation.time, evaluation.consumed_samples, evaluation.values)
        self._writer.flush()

    def close(self) -> None:
        """Write the pending events and close the file."""
        self._writer.close()

    def _write(self, step: int, time: float, samples: int | None, values: Mapping[str, float]) -> None:
        # The points over samples immediately follow the points over steps: `drop_later_steps` relies on this order.
        self._add(step, time, values)
        if samples is not None:
            twins = {name + VERSUS_SAMPLES: values[name] for name in values if has_samples_axis(name)}
            self._add(samples, time, twins)

    def _add(self, step: int, time: float, values: Mapping[str, float]) -> None:
        if values:
            points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=points)))


def drop_later_steps(folder: str | Path, last_step: int) -> None:
    """Remove points after a step, and records truncated by a kill, from the event files of a folder.

    A point over samples belongs to the step that was written before it. Files without such points are not modified;
    the others are replaced atomically.
    """
    for path in sorted(Path(folder).glob("*tfevents*")):
        records = list(RawEventFileLoader(str(path)).Load())
        kept = _up_to(records, last_step)
        new = path.with_name("new." + path.name.replace("tfevents", "partial"))
        with new.open("wb") as file:
            writer = RecordWriter(file)
            for record in kept:
                writer.write(record)
        if new.stat().st_size == path.stat().st_size:
            new.unlink()
        else:
            new.replace(path)


def _up_to(records: Sequence[bytes], last_step: int) -> list[bytes]:
    kept, is_kept = [], True
    for record in records:
        event = Event.FromString(record)
        if not _is_twin(event):
            is_kept = event.step <= last_step
        if is_kept:
            kept.append(record)
    return kept


def _is_twin(event: Event) -> bool:
    return bool(event.summary.value) and all(
        point.tag.endswith(VERSUS_SAMPLES) for point in event.summary.value
    )
