"""Files of a run folder."""

import re
from dataclasses import dataclass
from pathlib import Path

from mb_metrics.errors import RunFolderNameError
from mb_metrics.sinks.append_file import require_regular_file
from mb_schema.paths import expand_home, is_url, is_utf8, printable

METRICS, EVENTS, CONFIG, LOG = "metrics.jsonl", "events.jsonl", "run_config.yaml", "log.txt"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, all below `path`.

    >>> RunFolder(Path("runs/a")).metrics.name
    'metrics.jsonl'
    """

    path: Path

    @classmethod
    def named(cls, out: Path | str | None, *, name: str) -> "RunFolder":
        """Return the folder that the option `--out` gives, or `runs/<name>`; a leading `~` is the home directory.

        Raises:
            RunFolderNameError: a URL is given, or the absolute path is not UTF-8.
        """
        if out is None:
            return cls._writable(Path("runs") / name)
        text = str(out)
        if is_url(text) or re.match(r"[A-Za-z][\w+.-]+:/", text):  # a Path collapses the double slash
            raise RunFolderNameError(
                f"--out: {text} is a URL. Runs are written through the local file system only. Name a local folder, "
                "or one into which the storage is mounted on every node."
            )
        return cls._writable(Path(expand_home(text)))

    @classmethod
    def _writable(cls, path: Path) -> "RunFolder":
        """Return the folder at a path, which the files in it name."""
        absolute = str(path.absolute())
        if not is_utf8(absolute):
            raise RunFolderNameError(
                f"--out: {printable(absolute)} is not UTF-8. The files of a run, which are, name its folder. Choose "
                "another folder, and start in one with such a name."
            )
        return cls(path)

    def require_files(self) -> None:
        """Check that what exists of the files of a run is a file.

        Raises:
            DamagedRunFileError: One is a folder, a named pipe or a device.
        """
        for name in (CONFIG, METRICS, EVENTS, LOG):
            require_regular_file(self.path / name)

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
