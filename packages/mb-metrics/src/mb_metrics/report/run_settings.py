"""Comparison of the settings of a run with a baseline, such as the recipe that the run was started from."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mb_metrics.redact import hide_secrets
from mb_metrics.report.run_history import RunConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfiguration:
    """Settings that the settings of a run are compared with."""

    name: str
    """Name in the report, such as "the recipe gpt_tiny"."""
    settings: Mapping[str, object]
    """Nested settings."""
    ignored: Collection[str] = frozenset()
    """Dotted paths that are not compared."""


def compare_configuration(
    settings: Mapping[str, object], baseline: BaselineConfiguration | None = None
) -> RunConfiguration:
    """Return the nested settings of a run by dotted path, with the differences from a baseline.

    Secrets are masked. Settings that only the baseline contains are not differences. Without a baseline there is no
    comparison.
    """
    shown = hide_secrets(settings)
    if baseline is None:
        return RunConfiguration(settings=shown)
    old, new = dict(_leaves(baseline.settings)), dict(_leaves(settings))
    paths = [
        path for path in {**old, **new} if path in shown and path in new and path not in baseline.ignored
    ]
    changes = {path: (old.get(path), new[path]) for path in paths if old.get(path) != new[path]}
    return RunConfiguration(settings=shown, baseline=baseline.name, changes=changes)


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted path and value of each leaf; lists and empty mappings are leaves."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
