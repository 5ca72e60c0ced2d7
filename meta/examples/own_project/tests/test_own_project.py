"""The recipe trains; `pip install -e . pytest` first."""

from own_project.recipes import SORTING_TINY
from own_project.sorting import SortedDigits

from mb_trainer import pretrain


def test_the_second_half_is_the_first_one_sorted():
    sample = SortedDigits(7, 10, samples=1, split=0)[0]
    tokens = [*sample["tokens"].tolist(), sample["labels"][-1].item()]
    assert sorted(tokens[:4]) == tokens[4:]


def test_the_recipe_trains(tmp_path):
    config = SORTING_TINY.build()
    config.train.train_iters, config.validation.eval_iters = 4, 0
    config.scheduler.lr_warmup_iters = 1
    outcome = pretrain(config, code=SORTING_TINY.code, out=tmp_path / "run")
    assert (outcome.reason, outcome.step) == ("finished", 4)
