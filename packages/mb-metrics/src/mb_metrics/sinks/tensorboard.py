"""The door to TensorBoard: event files, written by tensorboard's own writer, without torch.

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


class TensorBoardSink:
    """Writes each metric under its name as tag, and ungrouped ones also against samples, as "<name> vs samples".

    Resuming rewrites the event files of the folder without what the run will repeat. (TensorBoard's own way, a
    restart mark, would take every later value of the sample axis away, as if samples were steps.)

    Args:
        folder: Where the event files are; it is made. TensorBoard shows it as one run.
        resume_step: The last step that stands: one before the first (0, or -1 where steps count from 0) begins anew,
            None continues after what is there.
        queue_size: Events held for the writing thread before `write_rows` waits for it.
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
        """Bring what was written to disk; the last row of an interval carries its rates."""
        self._writer.flush()

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write the points of an evaluation and bring them to disk."""
        self._write(evaluation.step, evaluation.time, evaluation.consumed_samples, evaluation.values)
        self._writer.flush()

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._writer.close()

    def _write(self, step: int, time: float, samples: int | None, values: Mapping[str, float]) -> None:
        # A row's points and, right after them, their twins: `drop_later_steps` relies on this order.
        self._add(step, time, values)
        if samples is not None:
            twins = {name + VERSUS_SAMPLES: values[name] for name in values if has_samples_axis(name)}
            self._add(samples, time, twins)

    def _add(self, step: int, time: float, values: Mapping[str, float]) -> None:
        if values:
            points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=points)))


def drop_later_steps(folder: str | Path, last_step: int) -> None:
    """Take the points after a step, and records cut by a kill, out of a folder's event files.

    A point against samples goes with the step that was written before it. Files in which nothing has to go are
    not touched; the others are replaced, each at once.
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
    kept, stands = [], True
    for record in records:
        event = Event.FromString(record)
        if not _is_twin(event):
            stands = event.step <= last_step
        if stands:
            kept.append(record)
    return kept


def _is_twin(event: Event) -> bool:
    return bool(event.summary.value) and all(
        point.tag.endswith(VERSUS_SAMPLES) for point in event.summary.value
    )
