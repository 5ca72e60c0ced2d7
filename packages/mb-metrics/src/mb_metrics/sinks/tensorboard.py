"""Adapter for TensorBoard: event files in tensorboard's format, without torch.

Install it with `pip install "mb-metrics[tensorboard]"`.
"""

import io
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from mb_metrics.names import VERSUS_SAMPLES, has_samples_axis
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.sinks.append_file import AppendFile
from mb_metrics.sinks.sink import Sink

_OWN_FILE = re.compile(r"events\.out\.tfevents\.\d{16,}\..+\.\d+")
"""Name of a file of `TensorBoardSink`: other writers have seconds, not nanoseconds, in their names."""


class TensorBoardSink(Sink):
    """Sink that writes each metric with its name as tag, and ungrouped metrics also as "<name> vs samples".

    Resuming rewrites the event files that this sink has written to the folder, without the steps that the run repeats;
    files of other writers are not changed. TensorBoard's restart marker is not used, because it compares samples with
    steps and would remove later values on the sample axis.

    Each call writes its points at once, completely or not at all, so that `BackgroundSink` can repeat a call that
    failed on a full disk. tensorboard's `EventFileWriter` has a thread that ends with the first failure.

    Args:
        folder: Folder of the event files; it is created. TensorBoard shows it as one run.
        resume_step: The last step to keep: a step before the first one (0, or -1 if steps count from 0) starts empty,
            None appends to the existing files.

    Raises:
        OSError: the folder or a file in it cannot be written.
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if resume_step is not None:
            drop_later_steps(folder, resume_step)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendFile(Path(folder, name))
        self._write([Event(wall_time=time.time(), file_version="brain.Event:2")])

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write the points of the next steps."""
        self._write([event for row in rows for event in _events(row)])

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write the points of an evaluation."""
        self._write(_events(evaluation))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, events: Iterable[Event]) -> None:
        buffer = io.BytesIO()
        writer = RecordWriter(buffer)
        for event in events:
            writer.write(event.SerializeToString())
        self._file.append(buffer.getvalue())


def _events(record: MetricsRow | Evaluation) -> Iterator[Event]:
    """Yield the points of a record over steps, and those over samples immediately after them.

    `drop_later_steps` relies on this order.
    """
    values, samples = record.values, record.consumed_samples
    if values:
        yield _event(record.step, record.time, values)
    twins = {name + VERSUS_SAMPLES: values[name] for name in values if has_samples_axis(name)}
    if samples is not None and twins:
        yield _event(samples, record.time, twins)


def _event(step: int, at: float, values: Mapping[str, float]) -> Event:
    points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(wall_time=at, step=step, summary=Summary(value=points))


def drop_later_steps(folder: str | Path, last_step: int) -> None:
    """Remove points after a step, and records truncated by a kill, from the files of `TensorBoardSink` in a folder.

    A point over samples belongs to the step that was written before it. Files without such points are not modified;
    the others are replaced atomically.
    """
    for path in sorted(path for path in Path(folder).iterdir() if _OWN_FILE.fullmatch(path.name)):
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
