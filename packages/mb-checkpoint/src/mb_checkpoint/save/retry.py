"""Back-off of failed saves: retry before the next step, then after 2, 4, ... steps, and once at the end of the run."""

from mb_checkpoint.errors import CheckpointSaveError

MAX_STEPS_BETWEEN_RETRIES = 64
"""Maximum number of steps between two attempts after a failed save."""


class SaveRetry:
    """Schedule of the retries of a failed save. Deterministic, so identical on all ranks."""

    def __init__(self) -> None:
        self.steps_left: int | None = None
        """Steps until the next attempt; None: nothing is to be retried."""
        self._next_interval = 1
        self._reason = ""
        self._last_attempt = False

    @property
    def is_last_attempt(self) -> bool:
        """Whether the last answer of `is_due` started the only retry at the end of the run."""
        return self._last_attempt

    def on_failed(self, reason: str) -> None:
        """Record a failure; the next retry is due after twice as many steps as the previous one."""
        self.steps_left = self._next_interval
        self._next_interval = min(2 * self._next_interval, MAX_STEPS_BETWEEN_RETRIES)
        self._reason = reason

    def on_saved(self) -> None:
        """Record a complete checkpoint: nothing is to be retried."""
        self.steps_left, self._next_interval = None, 1

    def is_due(self, *, at_end: bool) -> bool:
        """Return whether to retry now. Call it once after each step, and once at the end of the run (`at_end`)."""
        if self.steps_left is None:
            return False
        self.steps_left -= 1
        self._last_attempt = at_end
        return at_end or self.steps_left <= 0

    def raise_if_exhausted(self, step: int) -> None:
        """Reject the end of a run whose last save failed, and whose retry failed as well.

        Raises:
            CheckpointSaveError: the message has the reason of the last failure.
        """
        if self._last_attempt and self.steps_left is not None:
            raise CheckpointSaveError(
                f"checkpoint of the last step, {step}: could not be written in two tries; the second ended with: "
                f"{self._reason}"
            )
