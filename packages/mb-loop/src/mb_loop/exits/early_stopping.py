"""Early stopping: the end of training when a validation metric stops improving. Imports torch."""

import math
import sys
from collections.abc import Mapping
from typing import Literal, Protocol

from mb_loop.callbacks import Callback, CallbackContext
from mb_loop.collectives import max_across_ranks
from mb_loop.errors import LoopError, TrainSettingsError
from mb_loop.evaluation.validation import evaluation_possible

_WORST = math.inf
"""Score before the first value, and of NaN. A score is the metric with the sign that makes lower scores better."""
_NO_METRIC = -math.inf
"""Score of a rank without the metric, in the maximum over all ranks: every other score exceeds it."""
_LOWEST_EXCHANGED = -sys.float_info.max
"""Replaces the score -inf in the maximum over all ranks, where -inf is `_NO_METRIC`."""


class EarlyStoppingSettings(Protocol):
    """Fields of section `train` that define early stopping."""

    @property
    def early_stop_patience(self) -> int | None:
        """Evaluations without an improvement; None: there is no early stopping."""

    @property
    def early_stop_metric(self) -> str:
        """Name of the metric."""

    @property
    def early_stop_min_delta(self) -> float:
        """Smallest change that is an improvement."""

    @property
    def early_stop_mode(self) -> Literal["min", "max"]:
        """Whether a lower value ("min") or a higher one ("max") is better."""


def early_stopping(train: EarlyStoppingSettings) -> "EarlyStopping | None":
    """Return the callback that the section configures; None if `early_stop_patience` is None.

    Raises:
        TrainSettingsError: as for `EarlyStopping`.
    """
    if train.early_stop_patience is None:
        return None
    return EarlyStopping(
        train.early_stop_metric,
        patience=train.early_stop_patience,
        min_delta=train.early_stop_min_delta,
        mode=train.early_stop_mode,
    )


class EarlyStoppingStateError(LoopError, ValueError):
    """A stored state of early stopping belongs to another metric, or is incomplete."""


class EarlyStopping(Callback):
    """Stop training once a validation metric has not improved in `patience` evaluations in a row.

    In `mb_loop.train` it is a callback. In another loop call `update` after each evaluation:

    >>> stopping = EarlyStopping("loss", patience=2)
    >>> any(stopping.update(loss) for loss in (3.0, 2.0, 2.1)), stopping.update(2.0)
    (False, True)

    `state_dict` has the best value and the count, so that a resumed run stops where an uninterrupted one would. In
    `mb_loop.train` all ranks stop after the same step: a metric is known on the last pipeline stage only, so the ranks
    compare it after each evaluation, with one collective over the world. A run that is resumed after its early stop
    makes no further step.

    Args:
        metric: name of a metric of the evaluation, such as "lm loss".
        patience: number of evaluations without an improvement after which training ends.
        min_delta: smallest change that is an improvement; a change of exactly this size is none.
        mode: "min" if a lower value is better, "max" if a higher one is.

    Raises:
        TrainSettingsError: patience is below 1, min_delta is negative or not finite, or the mode is unknown.
    """

    def __init__(
        self, metric: str, *, patience: int, min_delta: float = 0.0, mode: Literal["min", "max"] = "min"
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise TrainSettingsError(
                f"early stopping: patience is {patience!r}, but it is a number of evaluations. Set it to 1 or more."
            )
        if not (math.isfinite(min_delta) and min_delta >= 0):
            raise TrainSettingsError(
                f"early stopping: min_delta is {min_delta!r}, but it is the size of a change. Set it to 0 or more."
            )
        if mode not in ("min", "max"):
            raise TrainSettingsError(f'early stopping: mode is {mode!r}. Set it to "min" or "max".')
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._sign = 1.0 if mode == "min" else -1.0
        self._best = _WORST
        self._without_improvement = 0

    @property
    def best(self) -> float | None:
        """Best value so far; None before the first number."""
        return None if self._best == _WORST else self._sign * self._best

    @property
    def without_improvement(self) -> int:
        """Number of evaluations since the best value."""
        return self._without_improvement

    def update(self, value: float) -> bool:
        """Record the metric of an evaluation; return whether to stop. NaN is not an improvement.

        Not collective: on several ranks, pass the same value on each.
        """
        self._record(self._score(value))
        return self._is_exhausted

    def on_train_start(self, context: CallbackContext) -> None:
        """Reject a run without evaluations, which would never stop.

        Raises:
            TrainSettingsError: there are no validation data, or no evaluation during training is set.
        """
        counters, settings = context.state.train_state, context.state.cfg.validation
        if not (counters.do_valid and settings.eval_interval and evaluation_possible(settings)):
            raise TrainSettingsError(
                f"early stopping: no evaluation has {self.metric!r} (validation data: "
                f"{'yes' if counters.do_valid else 'none'}, eval_interval={settings.eval_interval}). Training ends "
                "when a metric of evaluations stops improving. Pass validation data and set "
                "validation.eval_interval, or leave early stopping out."
            )

    def on_eval_end(self, context: CallbackContext) -> None:
        """Record the metric of an evaluation that was not stopped early. Collective over the world.

        An evaluation without the metric does not count: its loss may be undefined, because no token was in it.

        Raises:
            TrainSettingsError: on all ranks: the first evaluation has no such metric, so its name is wrong.
        """
        if context.total_loss_dict is None:
            return
        value = context.total_loss_dict.get(self.metric)
        local_score = _NO_METRIC
        if value is not None:
            local_score = max(_LOWEST_EXCHANGED, self._score(value))
        score = max_across_ranks(local_score)
        if score != _NO_METRIC:
            self._record(-math.inf if score == _LOWEST_EXCHANGED else score)
        elif self._best == _WORST and not self._without_improvement:
            names = ", ".join(map(repr, context.total_loss_dict)) or "none on this rank"
            raise TrainSettingsError(
                f"early stopping: the evaluation has no metric {self.metric!r} (it has {names}). Name one of them."
            )

    def stop_requested(self, step: int) -> str | None:
        """Return the reason to end training after this step, or None; identical on all ranks."""
        if not self._is_exhausted:
            return None
        problem = "was NaN or infinite" if self.best is None else f"has not improved on {self.best:.6g}"
        return (
            f"{self.metric} {problem} in {self._without_improvement} evaluations (patience {self.patience})"
        )

    def state_dict(self) -> dict[str, float | int | str]:
        """Return the best value and the evaluations since, with the metric that they belong to."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "best": self._sign * self._best,
            "without_improvement": self._without_improvement,
        }

    def load_state_dict(self, state: Mapping[str, float | int | str]) -> None:
        """Restore a stored state.

        Raises:
            EarlyStoppingStateError: the state is that of another metric or mode, or lacks a value.
        """
        missing = {"metric", "mode", "best", "without_improvement"} - state.keys()
        if missing:
            raise EarlyStoppingStateError(
                f"early stopping: the stored state lacks {', '.join(sorted(missing))}. Load one that state_dict() "
                "wrote."
            )
        if (state["metric"], state["mode"]) != (self.metric, self.mode):
            raise EarlyStoppingStateError(
                f"early stopping: the stored state is of {state['metric']!r} ({state['mode']}), not of {self.metric!r} "
                f"({self.mode}). Keep the metric and the mode of the run, or start a new one."
            )
        self._best = self._sign * float(state["best"])
        self._without_improvement = int(state["without_improvement"])

    @property
    def _is_exhausted(self) -> bool:
        return self._without_improvement >= self.patience

    def _score(self, value: float) -> float:
        return _WORST if math.isnan(value) else self._sign * value

    def _record(self, score: float) -> None:
        """Keep a score if it is better than the best one, else count an evaluation without improvement."""
        if score < self._best - self.min_delta:
            self._best, self._without_improvement = score, 0
        else:
            self._without_improvement += 1
