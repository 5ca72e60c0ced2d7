import gc
import math

import pytest

from mb_loop import LoopState, TrainState, validation_line
from mb_loop.evaluation.validation import evaluation_due
from mb_loop.loop_state import TrainSection, ValidationSection
from mb_loop.maintenance.manual_gc import ManualGC, ManualGCError


def test_collections_happen_at_the_interval_and_around_evaluations():
    collected = []
    manual_gc = ManualGC(TrainSection(manual_gc=True, manual_gc_interval=2), collect=collected.append)
    with manual_gc.managed():
        assert not gc.isenabled()
        assert manual_gc.interval == 2
        for step in (2, 4):
            manual_gc.collect(step)
        with manual_gc.around_evaluation():
            pass
    assert gc.isenabled()
    assert collected == [2, 2, 2, 2, 0]


@pytest.mark.parametrize(("eval_", "collected"), [(100, [2, 2, 0]), (0, [2])], ids=["100", "0"])
def test_a_number_counts_as_true_unless_it_is_zero(eval_, collected):
    """Megatron-LM collects `if args.manual_gc and args.manual_gc_eval`."""
    found = []
    manual_gc = ManualGC(TrainSection(manual_gc=True, manual_gc_eval=eval_), collect=found.append)
    with manual_gc.managed(), manual_gc.around_evaluation():
        pass
    assert found == collected


def test_the_collector_is_automatic_again_after_an_error():
    with pytest.raises(ZeroDivisionError), ManualGC(TrainSection(manual_gc=True)).managed():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_the_collector_is_unchanged_by_default():
    manual_gc = ManualGC(TrainSection(manual_gc_interval=1), collect=lambda generation: 1 / 0)
    with manual_gc.managed(), manual_gc.around_evaluation():
        assert gc.isenabled()
    assert manual_gc.interval == 0


def test_a_negative_interval_is_rejected():
    with pytest.raises(ManualGCError, match="-1"):
        ManualGC(TrainSection(manual_gc=True, manual_gc_interval=-1))


def due_steps(*, do_valid=True, **settings):
    validation = ValidationSection(**settings)
    return [
        step for step in range(1, 13) if evaluation_due(validation, TrainState(step=step, do_valid=do_valid))
    ]


def test_when_an_evaluation_is_due():
    assert due_steps(eval_iters=1, eval_interval=4) == [4, 8, 12]
    assert due_steps(eval_iters=1, eval_interval=4, start_eval_at_iter=5) == [8, 12]
    assert due_steps(eval_iters=1, eval_interval=4, do_valid=False) == []
    assert due_steps(eval_iters=1) == []


@pytest.mark.parametrize("eval_iters", [None, 0])
def test_no_batches_mean_no_evaluation(eval_iters):
    assert due_steps(eval_iters=eval_iters, eval_interval=4) == []


def test_validation_is_enabled_if_there_are_batches_to_evaluate():
    assert LoopState.of(train_iters=1, eval_iters=2).train_state == TrainState(do_train=True, do_valid=True)


def test_the_log_line_of_a_validation():
    assert validation_line("iteration 10", {"lm loss": 2.0, "mtp": 25.0}) == (
        " validation loss at iteration 10 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | "
        "mtp value: 2.500000E+01 | mtp PPL: 4.851652E+08 | "
    )


def test_a_loss_that_is_nan_is_printed_as_nan():
    assert validation_line("x", {"l": math.nan}) == " validation loss at x | l value: NAN | l PPL: NAN | "
