"""Choice of the checkpoints that retention keeps. Standard library only."""

from collections.abc import Callable, Collection


def steps_to_remove(
    steps: Collection[int],
    *,
    keep: int,
    protected: int,
    retain_interval: int | None = None,
    is_intact: Callable[[int], bool] = lambda _step: True,
) -> list[int]:
    """Return the steps beyond the `keep` newest intact ones, oldest first, never the protected one.

    Only steps up to the protected one count: newer folders belong to another branch of the run. `keep=-1` removes
    nothing. Multiples of `retain_interval` are kept as well.

    Args:
        steps: All existing steps.
        keep: Number of intact steps to keep.
        protected: Step that is kept in any case.
        retain_interval: Multiples of it are kept; None disables this.
        is_intact: Returns whether a step counts. Called only if there is a candidate for deletion, newest first, until
            enough are found.

    Raises:
        ValueError: `keep` is 0 or below -1, or `retain_interval` is below 1.

    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40)
    [10, 20]
    >>> steps_to_remove([10, 20, 30, 40], keep=1, protected=40, retain_interval=20)
    [10, 30]
    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40, is_intact=lambda step: step != 30)
    [10]
    """
    _reject_invalid(keep, retain_interval)
    candidates = sorted((step for step in steps if step <= protected), reverse=True)
    may_go = {
        step
        for step in candidates
        if step != protected and (retain_interval is None or step % retain_interval)
    }
    if keep == -1 or not may_go & set(candidates[keep:]):
        return []
    counted = 0
    for index, step in enumerate(candidates):
        counted += is_intact(step)
        if counted == keep:
            return sorted(may_go & set(candidates[index + 1 :]))
    return []


def _reject_invalid(keep: int, retain_interval: int | None) -> None:
    if keep != -1 and keep < 1:
        raise ValueError(
            f"checkpoint.most_recent_k: {keep} would delete the newest one. Use -1, or 1 or more."
        )
    if retain_interval is not None and retain_interval < 1:
        raise ValueError(
            f"checkpoint.save_retain_interval: {retain_interval} is not a spacing in steps. Use 1 or more."
        )
