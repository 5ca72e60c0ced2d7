"""Batch sizes are checked by rules and by the loop: what one refuses, the other refuses.

Neither package knows the other, so that nothing but this test holds them together.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from mb_config import RULES
from mb_loop.step.microbatches import BatchPlan, BatchSizeError
from mb_schema.batch_stages import growing_stages, scheduled_stages

Stages = tuple[tuple[int, int], ...]
RAMP = next(rule for rule in RULES if rule.id == "TR02")

UNITS = st.sampled_from(["", "k", "K", "M", "b", "T"])
SEPARATORS = st.sampled_from([" ", ",", ", "])
LENGTHS = st.sampled_from([None, 1, 7, 64])
ANYTHING = st.text(alphabet="012.5kMx:, -", max_size=12)


@st.composite
def rising(draw: st.DrawFn) -> str:
    """Strategy for valid schedules, except where a sequence length makes two thresholds equal."""
    thresholds = sorted(draw(st.sets(st.integers(1, 4000), max_size=4)))
    sizes = draw(st.lists(st.integers(1, 64), min_size=5, max_size=5))
    unit, separator = draw(UNITS), draw(SEPARATORS)
    later = zip(thresholds, sizes[1:], strict=False)
    return separator.join(
        [f"0:{sizes[0]}", *(f"{first}.5{unit}:{size}{draw(UNITS)}" for first, size in later)]
    )


@st.composite
def pairs(draw: st.DrawFn) -> str:
    """Strategy for texts of thresholds and sizes in any order, including zeros."""
    number = st.builds("{}{}".format, st.integers(0, 9), UNITS)
    return " ".join(
        f"{first}:{size}" for first, size in draw(st.lists(st.tuples(number, number), max_size=3))
    )


def as_config(text: str, *, seq_length: int | None) -> Stages | None:
    try:
        return scheduled_stages(text, seq_length=seq_length)
    except ValueError:
        return None


def as_loop(text: str, *, seq_length: int | None) -> Stages | None:
    try:
        plan = BatchPlan.of(
            1, micro_batch_size=1, data_parallel_size=1, step_batch_size_schedule=text, seq_length=seq_length
        )
    except BatchSizeError:
        return None
    return tuple(zip(plan.thresholds, plan.sizes, strict=True))


@settings(max_examples=150, deadline=None)
@given(text=rising() | pairs() | ANYTHING, seq_length=LENGTHS)
def test_a_schedule_means_the_same_stages_or_is_refused_by_both(text: str, seq_length: int | None) -> None:
    assert as_config(text, seq_length=seq_length) == as_loop(text, seq_length=seq_length)


@settings(max_examples=30, deadline=None)
@given(text=rising())
def test_what_is_a_schedule_is_read(text: str) -> None:
    assert as_config(text, seq_length=None) is not None


@settings(max_examples=150, deadline=None)
@given(
    ramp=st.lists(st.integers(0, 12), max_size=4)
    | st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 500)).map(list),
    batch=st.integers(1, 24),
)
def test_a_ramp_up_means_the_same_stages_or_is_refused_by_both(ramp: list[int], batch: int) -> None:
    assert ramp_as_config(ramp, batch) == ramp_as_loop(ramp, batch)


def ramp_as_config(ramp: list[int], batch: int) -> Stages | None:
    if RAMP.test(ramp, batch) is not None:
        return None
    return growing_stages(ramp, global_batch_size=batch)


def ramp_as_loop(ramp: Sequence[int], batch: int) -> Stages | None:
    try:
        plan = BatchPlan.of(batch, micro_batch_size=1, data_parallel_size=1, rampup_batch_size=ramp)
    except BatchSizeError:
        return None
    return tuple(zip(plan.thresholds, plan.sizes, strict=True))
