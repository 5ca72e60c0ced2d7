"""Destinations of the metrics and events of a run. Does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mb_metrics.config import LoggerConfig
from mb_metrics.run.event_recorder import EventRecorder
from mb_metrics.run.events import EventLog, read_last_step
from mb_metrics.sinks.build import build_sinks
from mb_metrics.sinks.console import TextStream
from mb_metrics.sinks.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOutput:
    """Destinations of the metrics and events of a run, for the one rank that writes."""

    folder: Path
    """Run folder: metrics.jsonl, events.jsonl, and the run ids of trackers."""
    run_config: Mapping[str, object] | None = None
    """Full configuration, shown by trackers; secrets are omitted."""
    config_file: Path | None = None
    """File of the configuration, uploaded to trackers that store files."""
    stream: TextStream | None = None
    """Output stream of the console; None: standard output."""
    print_evaluations: bool = True
    """Print a console line per evaluation; False: the training loop prints them."""
    description: Mapping[str, object] = field(default_factory=dict)
    """Fields of the event with which the run starts or resumes."""
    resume_description: Mapping[str, object] = field(default_factory=dict)
    """Additional fields of this event if steps were completed before."""
    process_start: float | None = None
    """Start of this process in seconds since the epoch; None: the event has no duration of the start."""
    more_sinks: Sequence[Sink] = ()
    """Sinks in addition to those of the section `logger`."""

    def sinks(self, logger: LoggerConfig, *, start_step: int) -> list[Sink]:
        """Return the configured sinks; rows of steps after `start_step` are dropped."""
        configured = build_sinks(
            logger,
            jsonl=self.folder / "metrics.jsonl",
            folder=self.folder,
            resume_step=start_step,
            run_config=self.run_config,
            stream=self.stream,
            print_evaluations=self.print_evaluations,
            end_mark=False,  # events.jsonl has the stop
        )
        return [*configured, *self.more_sinks]

    def event_recorder(self) -> EventRecorder:
        """Return the callback that writes events.jsonl. Call it before `sinks`, which drops rows of metrics.jsonl."""
        return EventRecorder(
            EventLog(self.folder / "events.jsonl"),
            description=self.description,
            resume_description=self.resume_description,
            previous=read_last_step(self.folder / "metrics.jsonl"),
            process_start=self.process_start,
        )
