"""Values of an evaluation: only losses have a perplexity."""

import math

from mb_metrics.recorder.record import Evaluation
from mb_metrics.sinks.console import evaluation_line, short_evaluation_line

EVALUATION = Evaluation(step=3, time=0.0, losses={"lm loss": 2.0, "accuracy": 0.5}, consumed_samples=None)


def test_the_exponential_of_an_accuracy_is_no_perplexity():
    assert EVALUATION.values == {
        "lm loss validation": 2.0,
        "lm loss validation ppl": math.exp(2),
        "accuracy validation": 0.5,
    }
    assert evaluation_line(EVALUATION) == (
        " validation loss at iteration 3 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 |"
        " accuracy value: 5.000000E-01 |"
    )
    assert short_evaluation_line(EVALUATION).count("perplexity") == 1
