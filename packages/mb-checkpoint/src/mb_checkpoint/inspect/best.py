"""Best checkpoint by a validation metric (`checkpoint.best_metric`): the values in the manifests, and their order.

Each save stores the metric of an evaluation at its step in its manifest, so that the best checkpoint is found among
those that exist, without a file that could name another one. Retention keeps it, and the link `best` points to it.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.formats.layout import BEST_LINK, checkpoints_in, steps_in, temporary_name
from mb_checkpoint.formats.manifest import Manifest, read_manifest

BEST_METRIC = "best_metric"
"""Key in the content of a manifest: name and mode of the metric, and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """Best checkpoint of a run by a validation metric."""

    path: Path
    step: int
    metric: str
    mode: Literal["min", "max"]
    """"min": a lower value is better; "max": a higher one."""
    value: float


def best_checkpoint(folder: Path | str) -> BestCheckpoint | None:
    """Return the best checkpoint of a run by `checkpoint.best_metric`; None if none has a metric.

    Of equal values the oldest is the best. Manifests are read, contents are not verified.

    Args:
        folder: A run folder, or a folder of checkpoints.
    """
    return next(iter(ranked_checkpoints(checkpoints_in(Path(folder)))), None)


def ranked_checkpoints(root: Path, *, up_to: int | None = None) -> list[BestCheckpoint]:
    """Return the checkpoints with a metric, the best first, by the metric of the newest one.

    Args:
        root: Folder with the `iter_*` folders.
        up_to: Last step to consider: newer folders belong to another branch of the run. None: all.
    """
    manifests: dict[Path, Manifest] = {}
    for step, path in steps_in(root).items():
        if up_to is None or step <= up_to:
            with suppress(ManifestError, OSError):
                manifest = read_manifest(path)
                if manifest is not None:
                    manifests[path] = manifest
    return ranked(manifests)


def ranked(manifests: Mapping[Path, Manifest]) -> list[BestCheckpoint]:
    """Return the checkpoints with a metric, the best first; see `ranked_checkpoints`."""
    newest_first = sorted(manifests.items(), key=lambda item: item[1].step, reverse=True)
    measured = [
        checkpoint for path, manifest in newest_first if (checkpoint := _measured(path, manifest)) is not None
    ]
    if not measured:
        return []
    metric, mode = measured[0].metric, measured[0].mode
    sign = 1 if mode == "min" else -1
    comparable = [
        checkpoint for checkpoint in measured if (checkpoint.metric, checkpoint.mode) == (metric, mode)
    ]
    return sorted(comparable, key=lambda checkpoint: (sign * checkpoint.value, checkpoint.step))


def metric_entry(metric: str | None, mode: str, value: float | None) -> dict[str, Any]:
    """Return the entry for the content of a manifest; empty without a metric or a finite value of it."""
    if metric is None or value is None or not math.isfinite(value):
        return {}
    return {BEST_METRIC: {"name": metric, "mode": mode, "value": float(value)}}


def link_best(root: Path, *, up_to: int) -> None:
    """Point the link `best` to the best checkpoint, atomically. File systems without links have none."""
    best = next(iter(ranked_checkpoints(root, up_to=up_to)), None)
    link = root / BEST_LINK
    if best is None or (link.exists() and not link.is_symlink()):
        return
    fresh = temporary_name(link)
    with suppress(OSError):
        fresh.symlink_to(best.path.name, target_is_directory=True)
        fresh.replace(link)
    with suppress(OSError):
        fresh.unlink(missing_ok=True)


def _measured(path: Path, manifest: Manifest) -> BestCheckpoint | None:
    """Return a checkpoint with its metric; None if its manifest has none."""
    entry = manifest.content.get(BEST_METRIC)
    if not isinstance(entry, dict):
        return None
    name, mode, value = entry.get("name"), entry.get("mode"), entry.get("value")
    if not isinstance(name, str) or mode not in ("min", "max") or not isinstance(value, float):
        return None
    if not math.isfinite(value):
        return None
    return BestCheckpoint(path=path, step=manifest.step, metric=name, mode=mode, value=value)
