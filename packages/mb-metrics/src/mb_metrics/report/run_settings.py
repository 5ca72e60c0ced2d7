"""Settings of a run, compared with a baseline such as the recipe that the run was started from."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from mb_metrics.redact import hide_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """Settings of a run, by dotted path."""

    settings: Mapping[str, object]
    baseline: str | None = None
    """Name of the recipe that the settings are compared with; None: no comparison."""
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """Dotted path -> (the baseline's value, this run's)."""
    set_by_user: Collection[str] | None = None
    """Dotted paths that the user set; other changes follow from them. None: not known."""

    def __post_init__(self) -> None:
        """Mask secrets, because reports are shared."""
        object.__setattr__(self, "settings", hide_secrets(self.settings))
        hidden = {
            path: (hide_secrets({path: old})[path], hide_secrets({path: new})[path])
            for path, (old, new) in self.changes.items()
            if not (isinstance(old, Mapping) or isinstance(new, Mapping))
        }
        object.__setattr__(self, "changes", {**self.changes, **hidden})


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
    if baseline is None:
        return RunConfiguration(settings=settings)
    old, new, shown = dict(_leaves(baseline.settings)), dict(_leaves(settings)), hide_secrets(settings)
    compared = shown.keys() & new.keys() - baseline.ignored
    changes = {
        path: (old.get(path), new[path])
        for path in {**old, **new}
        if path in compared and old.get(path) != new[path]
    }
    return RunConfiguration(settings=settings, baseline=baseline.name, changes=changes)


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted path and value of each leaf; lists and empty mappings are leaves."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
