"""`checkpoint.save_interval=auto`: computed from the plan of a run, and kept as it is in the run's file."""

import pytest
import yaml

from mb_config import Provenance, SavedSettings
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import preflight
from mb_plan import make_plan, predict
from mb_plan.time.saves import plan_saves
from mb_trainer.recipes import RECIPES, gpt_tiny
from mb_trainer.run.preflight import CHECKS, target_facts


def llama():
    """Return the configuration of a run on many GPUs that saves in the background."""
    config = RECIPES["llama31_70b"].build()
    config.checkpoint.save = "/checkpoints"
    return config


def resolved(config, *, gpu="h100", world_size=128):
    """Resolve a configuration for GPUs and return the result."""
    facts = target_facts(TargetMachine(world_size=world_size, gpu=gpu), config.env_vars)
    return preflight(config, CHECKS, facts=facts, provenance=Provenance.of(config))


def test_the_interval_of_a_recipe_is_that_of_its_plan():
    config = llama()
    result = resolved(config)
    sections = config.sections()
    plan = make_plan(sections, world_size=128)
    seconds = predict(sections, plan, gpu="h100").step_seconds
    assert config.checkpoint.save_interval == plan_saves(sections, plan, step_seconds=seconds).best_interval
    assert [change.field for change in result.notable if change.rule == "auto"] == [
        "checkpoint.save_interval"
    ]
    assert 20 * 60 < config.checkpoint.save_interval * seconds < 60 * 60


def test_more_gpus_save_more_often():
    intervals = []
    for world_size in (128, 512):
        config = llama()
        resolved(config, world_size=world_size)
        sections = config.sections()
        plan = make_plan(sections, world_size=world_size)
        intervals.append(config.checkpoint.save_interval * predict(sections, plan, gpu="h100").step_seconds)
    assert intervals[1] < intervals[0]


def test_an_interval_of_the_user_is_kept_and_warned_of():
    config = llama()
    config.checkpoint.save_interval, config.checkpoint.most_recent_k = 500, -1
    result = resolved(config)
    assert config.checkpoint.save_interval == 500
    assert [problem.id for problem in result.warnings] == ["PL03", "PL04"]


def test_without_a_predicted_step_it_is_500():
    config = gpt_tiny()
    config.checkpoint.save_interval = "auto"
    resolved(config, gpu=None, world_size=1)
    assert config.checkpoint.save_interval == 500


def test_the_best_checkpoint_needs_saves_after_evaluations():
    config = llama()
    config.checkpoint.best_metric, config.validation.eval_interval = "lm loss", 40
    assert resolved(config).errors == []
    assert config.checkpoint.save_interval % 40 == 0


@pytest.mark.parametrize(
    ("field", "value", "changed"),
    [
        ("save", None, "async_save"),
        ("ckpt_format", "torch", "async_save"),
    ],
)
def test_what_a_recipe_saves_in_the_background_gives_way_to_settings_of_the_user(field, value, changed):
    config = llama()
    setattr(config.checkpoint, field, value)
    result = resolved(config)
    assert f"checkpoint.{changed}" in [change.field for change in result.fallbacks]
    assert getattr(config.checkpoint, changed) is False


def test_the_file_of_a_run_keeps_it(tmp_path):
    config = gpt_tiny()
    config.checkpoint.save_interval = "auto"
    resolved(config, gpu=None, world_size=1)
    text = config.to_yaml(tmp_path / "run_config.yaml")
    assert yaml.safe_load(text)["checkpoint"]["save_interval"] == "auto"
    assert SavedSettings(file=tmp_path / "run_config.yaml").differences(config) == {}
    config.checkpoint.save_interval = 300
    assert SavedSettings(file=tmp_path / "run_config.yaml").differences(config) == {
        "checkpoint.save_interval": ("auto", 300)
    }
