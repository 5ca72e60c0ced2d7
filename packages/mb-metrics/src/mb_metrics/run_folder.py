"""Files of a run folder."""

from dataclasses import dataclass
from pathlib import Path

METRICS, EVENTS, CONFIG, LOG = "metrics.jsonl", "events.jsonl", "run_config.yaml", "log.txt"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, all below `path`.

    >>> RunFolder(Path("runs/a")).metrics.name
    'metrics.jsonl'
    """

    path: Path

    @property
    def run_config(self) -> Path:
        """Resolved configuration."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON object per step."""
        return self.path / METRICS

    @property
    def events(self) -> Path:
        """Start, resume, save, evaluation and stop events, with their times."""
        return self.path / EVENTS

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints and their trackers."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """Console output."""
        return self.path / LOG
