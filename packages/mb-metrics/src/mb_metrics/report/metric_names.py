"""Names under which a run recorded its losses and its learning rate."""

from collections.abc import Collection
from dataclasses import dataclass

from mb_metrics import names
from mb_metrics.errors import MetricsError


class MetricNotRecordedError(MetricsError, LookupError):
    """Error raised when a run has no metric of a requested name."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Names of the losses and of the learning rate of a run, where they are not the usual ones.

    Without names, losses and learning rate are found by the usual names: "loss", "train/loss", "lm loss", "lr", ...
    """

    losses: tuple[str, ...] = ()
    """Names of the losses, the main one first; empty: the usual names, and every other name without a group
    that contains "loss" or another usual word; if there is none, the first metric that could be one."""
    learning_rate: str | None = None
    """Name of the learning rate; None: the usual names."""

    def is_loss(self, name: str) -> bool:
        """Return True if a metric is a loss."""
        return name in self.losses if self.losses else names.is_loss(name)

    def find_losses(self, recorded: Collection[str]) -> tuple[str, ...]:
        """Return the training losses among recorded names, the main one first."""
        if self.losses:
            return tuple(name for name in self.losses if name in recorded)
        losses = [name for name in recorded if names.is_loss(name) and not names.is_validation_loss(name)]
        losses = losses or [name for name in recorded if names.is_averaged(name)][:1]
        return tuple(sorted(losses, key=lambda name: not names.is_training_loss(name)))

    def find_learning_rate(self, recorded: Collection[str]) -> str | None:
        """Return the name of the learning rate among recorded names; None if there is none."""
        if self.learning_rate is not None:
            return self.learning_rate if self.learning_rate in recorded else None
        return names.find_learning_rate(recorded)

    def require_recorded(self, recorded: Collection[str], *, source: str) -> None:
        """Raise an error if a run recorded metrics, and none of a requested name.

        Raises:
            MetricNotRecordedError: none of the losses, or not the learning rate, was recorded.
        """
        wanted = {"loss": self.losses, "learning rate": (self.learning_rate,) if self.learning_rate else ()}
        for kind, requested in wanted.items():
            if recorded and requested and not any(name in recorded for name in requested):
                raise MetricNotRecordedError(
                    f"{source}: the {kind} {' or '.join(map(repr, requested))} was not recorded. Recorded metrics are "
                    f"{', '.join(map(repr, recorded))}. Name one of them."
                )
