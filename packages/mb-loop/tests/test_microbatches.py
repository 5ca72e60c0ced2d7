from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_loop import BatchPlan, BatchSizeError, LoopState, StepBatch, TrainState, step_batch
from mb_loop.loop_state import LoopConfig, TrainSection
from mb_loop.settings import batch_plan, evaluation_batch
from mb_loop.train_loop import advance_counters

sizes = st.integers(1, 64)


def run(plan, state, steps):
    """Return the samples of each step, and advance the state."""
    seen = []
    for _ in range(steps):
        batch = plan.at(state.consumed_train_samples)
        seen.append(batch.samples)
        advance_counters(state, batch, trained=True)
    return seen


@given(micro=sizes, dp=sizes, passes=sizes)
def test_a_divisible_batch_is_used_completely(micro, dp, passes):
    assert step_batch(passes * micro * dp, micro_batch_size=micro, data_parallel_size=dp) == StepBatch(
        num_microbatches=passes, micro_batch_size=micro, samples=passes * micro * dp, dropped=0
    )


@given(micro=sizes, dp=sizes, passes=sizes, rest=st.integers(0, 4000))
def test_rounding_down_uses_or_drops_each_sequence_once(micro, dp, passes, rest):
    wanted = passes * micro * dp + rest % (micro * dp)
    batch = step_batch(
        wanted, micro_batch_size=micro, data_parallel_size=dp, decrease_batch_size_if_needed=True
    )
    assert batch.samples + batch.dropped == wanted
    assert batch.samples == batch.num_microbatches * micro * dp
    assert 0 <= batch.dropped < micro * dp


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 2, 2, False), r"not a multiple of 4 .*Use 8 or 12, or set train.decrease_batch_size_if_needed"),
        ((3, 2, 2, True), r"not a multiple of 4 .*Use 4 or 4\."),
        ((0, 1, 1, False), "at least 1"),
        ((8, 0, 1, False), "at least 1"),
        ((8, 1, 0, True), "at least 1"),
    ],
)
def test_sizes_that_do_not_divide_are_rejected(arguments, message):
    batch, micro, dp, decrease = arguments
    with pytest.raises(BatchSizeError, match=message):
        step_batch(
            batch, micro_batch_size=micro, data_parallel_size=dp, decrease_batch_size_if_needed=decrease
        )


def test_ramp_up_as_in_megatron():
    plan = BatchPlan.of(1024, micro_batch_size=8, data_parallel_size=1, rampup_batch_size=[16, 8, 300_000])
    assert plan.sizes == tuple(range(16, 1025, 8))
    first = [plan.at(consumed).samples for consumed in (0, 2380, 2381, 4761, 4762, 299_999, 300_000, 300_001)]
    assert first == [16, 16, 24, 24, 32, 1016, 1024, 1024]


@given(
    first=st.integers(1, 8), increment=st.integers(1, 8), n=st.integers(0, 12), samples=st.integers(1, 500)
)
def test_ramp_up_follows_the_rule_in_exact_arithmetic(first, increment, n, samples):
    whole = first + n * increment
    plan = BatchPlan.of(
        whole, micro_batch_size=1, data_parallel_size=1, rampup_batch_size=[first, increment, samples]
    )
    for consumed in range(samples + 3):
        grown = int(consumed / Fraction(samples, n)) if n else 0
        expected = whole if consumed > samples else first + grown * increment
        assert plan.at(consumed).samples == expected


@given(before=st.integers(0, 20), after=st.integers(0, 20))
def test_a_resumed_ramp_up_continues_at_its_position(before, after):
    plan = BatchPlan.of(12, micro_batch_size=1, data_parallel_size=2, rampup_batch_size=[2, 2, 40])
    first, second = TrainState(), TrainState()
    sizes_before = run(plan, first, before)
    second.load_state_dict(first.state_dict())
    assert sizes_before + run(plan, second, after) == run(plan, TrainState(), before + after)


@pytest.mark.parametrize("ramp", [[4, 3, 100], [12, 2, 100], [4, 2], [4, 0, 100], [4, 4, 0]])
def test_a_ramp_that_does_not_reach_the_batch_is_rejected(ramp):
    with pytest.raises(BatchSizeError, match="rampup_batch_size"):
        BatchPlan.of(8, micro_batch_size=1, data_parallel_size=1, rampup_batch_size=ramp)


def test_every_size_of_a_ramp_must_divide():
    with pytest.raises(BatchSizeError, match="not a multiple of 4"):
        BatchPlan.of(8, micro_batch_size=2, data_parallel_size=2, rampup_batch_size=[4, 2, 100])


@given(micro=sizes, dp=sizes, wanted=st.integers(1, 5000), steps=st.lists(st.booleans(), max_size=20))
def test_counters_equal_hand_arithmetic(micro, dp, wanted, steps):
    wanted = max(wanted, micro * dp)
    batch = step_batch(
        wanted, micro_batch_size=micro, data_parallel_size=dp, decrease_batch_size_if_needed=True
    )
    state = TrainState()
    for trained in steps:
        advance_counters(state, batch, trained=trained)
    used, skipped = wanted // (micro * dp) * (micro * dp), steps.count(False)
    assert state == TrainState(
        step=len(steps),
        consumed_train_samples=len(steps) * used,
        skipped_train_samples=len(steps) * (wanted - used) + skipped * used,
    )


def test_evaluation_uses_the_training_sizes_by_default():
    assert evaluation_batch(
        LoopState.of(train_iters=1, micro_batch_size=2, global_batch_size=8).cfg
    ) == StepBatch(num_microbatches=4, micro_batch_size=2, samples=8)


@pytest.mark.parametrize("missing", ["micro_batch_size", "global_batch_size"])
def test_a_size_that_is_not_set_is_named(missing):
    cfg = LoopConfig(train=TrainSection(**{missing: None}))
    with pytest.raises(BatchSizeError, match=f"train.{missing}: is not set"):
        batch_plan(cfg)


def schedule(text, *, seq_length=None, dp=1, **keywords):
    return BatchPlan.of(
        0, micro_batch_size=1, data_parallel_size=dp, step_batch_size_schedule=text, seq_length=seq_length, **keywords
    )  # fmt: skip


def test_a_step_schedule_in_samples_and_in_tokens():
    samples = schedule("0:4 1K:8,2.5K:16")
    assert [samples.at(consumed).samples for consumed in (0, 999, 1000, 2499, 2500, 10**9)] == [
        4,
        4,
        8,
        8,
        16,
        16,
    ]
    tokens = schedule("0:4 1k:8 2.5k:16", seq_length=100)
    assert [tokens.at(consumed).samples for consumed in (0, 9, 10, 24, 25)] == [4, 4, 8, 8, 16]


def test_a_step_schedule_accepts_the_format_of_megatron():
    plan = schedule("0:768 250B:1536 500B:3072 0.75T:6144", seq_length=8192)
    assert plan.sizes == (768, 1536, 3072, 6144)
    assert plan.thresholds == tuple(tokens * 10**9 // 8192 for tokens in (0, 250, 500, 750))


@given(
    stages=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=5),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
)
def test_a_resumed_step_schedule_continues_at_its_position(stages, before, after):
    threshold, words = 0, []
    for gap, size in stages:
        words.append(f"{threshold}:{2 * size}")
        threshold += gap
    plan, first, second = schedule(" ".join(words), dp=2), TrainState(), TrainState()
    sizes_before = run(plan, first, before)
    second.load_state_dict(first.state_dict())
    assert sizes_before + run(plan, second, after) == run(plan, TrainState(), before + after)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1B:512", "does not begin at threshold 0"),
        ("0:8 10:16 10:32", "do not increase"),
        ("0:8 10:0", "batch of less than 1"),
        ("0:8 10:16.5", r"not whole in '10:16\.5'"),
        ("8", "not a list of threshold:size"),
        ("", "not a list of threshold:size"),
        ("0:8 1X:16", "not a list of threshold:size"),
        ("0:8 10:9", "not a multiple of 2"),
    ],
)
def test_an_invalid_step_schedule_is_rejected(text, message):
    with pytest.raises(BatchSizeError, match=message):
        schedule(text, dp=2)


def test_a_step_schedule_excludes_a_ramp_and_rounding_down():
    for other in ({"rampup_batch_size": [4, 4, 10]}, {"decrease_batch_size_if_needed": True}):
        with pytest.raises(BatchSizeError, match="defines every size itself"):
            schedule("0:8", **other)


def test_settings_with_a_schedule_need_no_global_batch():
    cfg = LoopConfig(train=TrainSection(global_batch_size=None, step_batch_size_schedule="0:2 6:4"))
    assert batch_plan(cfg).sizes == (2, 4)
