"""What the last lines of a run count."""

from mb_loop import CallbackContext, LoopState
from mb_trainer.summary import Summary


def evaluated(losses):
    """Return a summary that has heard the end of an evaluation after step 7."""
    state = LoopState.of(train_iters=9)
    state.train_state.step = 7
    summary = Summary()
    summary.on_eval_end(CallbackContext(state=state, model=[], total_loss_dict=losses))
    return summary


def test_an_evaluation_that_the_time_ended_has_validated_nothing():
    assert [evaluated(losses).validated for losses in ({"lm loss": 2.0}, {}, None)] == [7, 7, None]
