"""Conversion of a run of several ranks to one process, for `mb sample` and `mb export-hf`."""

import pytest

from mb_config import check
from mb_models.rules import BUILD_RULES
from mb_models.training.unsharded import UNSHARDED, unshard
from mb_trainer.recipes import RECIPES

CUTS = [
    ("deepseek_v3", {}),  # a layout of 16 pipeline stages with two virtual stages each
    ("gpt_tiny", {"num_layers_in_first_pipeline_stage": 1}),
    ("gpt_tiny", {"num_layers_in_last_pipeline_stage": 3}),
    ("gpt_tiny", {"pipeline_model_parallel_layout": "Et|tttL"}),
    ("gpt_tiny", {"num_layers": 5, "account_for_loss_in_pipeline_split": True}),
    ("mtp_tiny", {"pipeline_model_parallel_layout": "Ett|tmmL"}),
    ("hybrid_tiny", {"hybrid_layer_pattern": "M-G|-*-"}),
    ("hybrid_tiny", {"hybrid_layer_pattern": "M-|G-*-/*-"}),
]


@pytest.mark.parametrize(("recipe", "cut"), CUTS)
def test_no_cut_of_a_pipeline_is_left_for_one_process(recipe, cut):
    config = RECIPES[recipe].build()
    if cut:
        config.model.pipeline_model_parallel_size = 2
    for name, value in cut.items():
        setattr(config.model, name, value)
    assert check({"model": config.model}, BUILD_RULES) == []
    assert check({"model": unshard(config.model)}, BUILD_RULES) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_model_has_the_fields_that_are_set(recipe):
    assert all(hasattr(RECIPES[recipe].build().model, name) for name in UNSHARDED)


def test_a_pattern_keeps_its_layers():
    config = RECIPES["hybrid_tiny"].build()
    config.model.hybrid_layer_pattern = "M-|G-*-/*-"
    assert unshard(config.model).hybrid_layer_pattern == "M-G-*-/*-"
