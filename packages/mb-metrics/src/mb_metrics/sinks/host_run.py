"""Run of a tracker that the calling program has opened, and that sinks use without changing it."""

from collections.abc import Mapping

PREFIX = "mb_metrics/"
"""Default prefix of the metrics in the run of another program, so that they do not replace its metrics."""


def require_one_run(sink: str, *, run: object | None, new: str, settings: Mapping[str, object]) -> None:
    """Check that a sink has either an open run or the name under which it opens a new one.

    Args:
        sink: Name of the sink.
        run: The open run; None: not given.
        new: The setting that is required for a new run.
        settings: Settings of a new run; None: not given.

    Raises:
        ValueError: neither is given, or both.
    """
    if run is None and settings[new] is None:
        raise ValueError(
            f"{sink}: neither {new} nor run is given ({new}=None, run=None), so there is no run to write to. Pass "
            f"{new}= to open a run, or run= with a run that is already open."
        )
    set_names = [name for name, value in settings.items() if value is not None]
    if run is not None and set_names:
        raise ValueError(
            f"{sink}: {', '.join(set_names)} cannot be combined with run, because an open run keeps the settings with "
            "which it was opened. Omit them, or omit run to open a new one."
        )


def require_no_prefix(sink: str, prefix: str | None) -> None:
    """Check that no prefix is given for a run that the sink opens.

    Raises:
        ValueError: a prefix is given.
    """
    if prefix is not None:
        raise ValueError(
            f"{sink}: prefix ({prefix!r}) requires run, because a run that the sink opens has no other metrics. Omit "
            "prefix, or pass run=."
        )


def prefixed(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return metrics under their names in the run of another program."""
    return {f"{prefix}{name}": value for name, value in values.items()}
