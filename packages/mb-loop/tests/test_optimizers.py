import pytest

pytest.importorskip("torch")

from mb_loop.step.optimizers import learning_rates


class Optimizer:
    def __init__(self, *groups):
        self.param_groups = [{"params": params, "lr": rate, **marks} for params, rate, marks in groups]


OLD, NEW = {"is_decoupled_lr": True}, {"is_decoupled_lr": False, "default_config": False}
COMMON = {"is_decoupled_lr": False, "default_config": True}


@pytest.mark.parametrize(
    ("groups", "rates"),
    [
        ([("w", 0.5, {})], (0.5, None)),
        ([("w", 0.5, {}), ("e", 0.1, OLD)], (0.5, 0.1)),
        ([("w", 0.5, COMMON), ("e", 0.1, NEW), ("", 0.7, COMMON)], (0.5, 0.1)),
        ([("", 0.5, COMMON), ("e", 0.1, NEW)], (0.5, 0.1)),
        ([("w", 0.5, COMMON), ("", 0.1, NEW)], (0.5, 0.1)),
        ([("w", 0.5, NEW), ("v", 0.2, NEW)], (0.2, 0.2)),
        ([("e", 0.1, OLD)], (None, 0.1)),
        ([], (None, None)),
    ],
)
def test_rates_of_groups_on_the_common_and_on_a_separate_schedule(groups, rates):
    assert learning_rates(Optimizer(*groups)) == rates
