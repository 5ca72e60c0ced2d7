"""Model sections of the recipes: families, and rules that agree before launch and in the provider."""

from dataclasses import fields

import pytest

from mb_config import check
from mb_models.rules import RULES, violated_rules
from mb_trainer.config import ConfigContainer
from mb_trainer.recipes import RECIPES


@pytest.mark.parametrize("recipe", ["hybrid_tiny", "t5_tiny", "mimo_tiny"])
def test_sections_come_back_from_a_file_as_those_of_their_family(recipe, tmp_path):
    config = RECIPES[recipe].build()
    config.to_yaml(tmp_path / "run_config.yaml")
    read = ConfigContainer.from_yaml(tmp_path / "run_config.yaml")
    assert (read.model, read.dataset) == (config.model, config.dataset)


@pytest.mark.parametrize("recipe", ["gpt_tiny", "hybrid_tiny", "t5_tiny", "mimo_tiny"])
def test_the_check_before_launch_and_the_provider_refuse_the_same(recipe):
    for rule in RULES:
        model = RECIPES[recipe].build().model
        known = {field.name for field in fields(model)}
        for path, value in rule.fails.items():
            if path.removeprefix("model.") in known:
                setattr(model, path.removeprefix("model."), value)
        values = {f"model.{name}": getattr(model, name) for name in known}
        refused = [problem for problem in check({"model": model}, RULES) if problem.severity == "error"]
        found = [problem.id for problem in violated_rules(RULES, values)]
        assert found == [problem.id for problem in refused]
