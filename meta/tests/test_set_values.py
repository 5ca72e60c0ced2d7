"""A value that the user sets has the same effect from Python, a file and the command line."""

import copy
import pickle
from dataclasses import MISSING, fields, replace

import pytest
import yaml

from mb_config import ConfigError, OptimizerConfig, Provenance, given_fields, runtime_config_update
from mb_config.preflight.facts import collect_facts
from mb_config.preflight.run import preflight
from mb_metrics.run.folder import RunFolder
from mb_trainer.recipes import RECIPES
from mb_trainer.requests import READER
from mb_trainer.run.completion import complete
from mb_trainer.run.preflight import all_checks

PERF = (None, "h100", "h100_fp8", "gb200", "gb200_nvfp4")


def facts(config):
    return collect_facts(
        world_size=16,
        env={},
        env_vars=config.env_vars,
        versions={"transformer_engine": "2.9", "torch": "2.9"},
        gpu="h100",
    )


def changed_by_resolving():
    """Return path -> values that resolving or a table of fast settings gives a field, over all recipes."""
    found = {"checkpoint.save": ["x"], "checkpoint.load": ["x"], "logger.tensorboard_dir": ["x"]}
    for name, recipe in RECIPES.items():
        for perf in (
            PERF if name in ("gpt_tiny", "llama31_8b", "moe_1b", "deepseek_v3", "hybrid_8b") else PERF[:1]
        ):
            config = recipe.build()
            config.perf = perf
            for change in runtime_config_update(
                config, world_size=RECIPES[name].processes, rules=(), facts=facts(config)
            ):
                values = found.setdefault(change.field, [])
                if change.new not in values:
                    values.append(change.new)
    del found["data_parallel_size"]
    return found


CHANGED = changed_by_resolving()


def cases(name):
    """Yield each field that resolving may change, with its default and with what resolving gives it."""
    config = RECIPES[name].build()
    for path, computed in CHANGED.items():
        section, _, leaf = path.rpartition(".")
        owner = getattr(config, section) if section else config
        items = {item.name: item for item in fields(owner) if item.init} if section != "env_vars" else {}
        if section == "env_vars":
            yield from ((path, value) for value in (0, "1"))
        elif leaf in items:
            default = items[leaf].default
            values = [*computed[:2], *([] if default is MISSING or default in computed[:2] else [default])]
            # a record of another package in a file is a mapping with the name of its class
            yield from ((path, value) for value in values if not hasattr(value, "__dict__"))


def assigned(config, path, value):
    section, _, leaf = path.rpartition(".")
    if section == "env_vars":
        config.env_vars[leaf] = value
    else:
        setattr(getattr(config, section) if section else config, leaf, value)
    return config


def replaced(config, path, value):
    section, _, leaf = path.rpartition(".")
    if section == "env_vars":
        return replace(config, env_vars={**config.env_vars, leaf: value})
    if not section:
        return replace(config, **{leaf: value})
    return replace(config, **{section: replace(getattr(config, section), **{leaf: value})})


def from_file(name, settings, folder):
    file = folder / "settings.yaml"
    data = {}
    for path, value in settings.items():
        section, _, leaf = path.rpartition(".")
        (data.setdefault(section, {}) if section else data)[leaf] = value
    file.write_text(yaml.safe_dump(data))
    request = READER.read([name], files=[file])
    return request.config, request.provenance


def from_overrides(name, settings):
    texts = []
    for path, value in settings.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...")
        texts.append(f"{'+' if path.startswith('env_vars.') else ''}{path}={text}")
    request = READER.read([name, *texts])
    return request.config, request.provenance


def outcome(config, provenance, *, folder):
    """Return the resolved configuration and its problems."""
    complete(config, RunFolder.named(folder, name="run"), provenance, for_any_start=True)
    result = preflight(config, all_checks(), facts=facts(config), provenance=provenance)
    return config.to_dict(), sorted((problem.id, *problem.fields) for problem in result.problems)


def require_equal(name, path, value, perf, folder):
    settings = {**({} if perf is None else {"perf": perf}), path: value}
    expected = outcome(*from_overrides(name, settings), folder=folder)
    in_python = {"assigned": RECIPES[name].build(), "replaced": RECIPES[name].build()}
    for each, setter in (("assigned", assigned), ("replaced", replaced)):
        for item in settings.items():
            in_python[each] = setter(in_python[each], *item)
    in_python["copied"] = pickle.loads(pickle.dumps(copy.deepcopy(copy.copy(in_python["assigned"]))))
    found = {
        each: outcome(config, Provenance.of(config), folder=folder) for each, config in in_python.items()
    }
    found["file"] = outcome(*from_file(name, settings, folder), folder=folder)
    for way, result in found.items():
        assert result == expected, (name, path, value, perf, way)
    resolved, problems = expected
    section, _, leaf = path.rpartition(".")
    kept = (resolved[section] if section else resolved)[leaf] == value
    assert kept or value is None or any(path in fields for _, *fields in problems), (name, path, value, perf)


def rows(name):
    """Return the cases of a recipe, each with one value of `perf` in turn."""
    return [(path, value, PERF[number % len(PERF)]) for number, (path, value) in enumerate(cases(name))]


@pytest.mark.parametrize("name", RECIPES)
def test_the_way_in_which_a_value_is_set_does_not_matter(name, tmp_path):
    """A slice of all cases; over all recipes it contains every field."""
    for row in rows(name)[list(RECIPES).index(name) % 19 :: 19]:
        require_equal(name, *row, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("name", RECIPES)
def test_the_way_in_which_any_value_is_set_does_not_matter(name, tmp_path):
    for row in rows(name):
        require_equal(name, *row, tmp_path)


def test_the_values_of_a_recipe_are_not_the_users():
    config = RECIPES["sft_tiny"].build()
    assert set(Provenance.of(config).origins.values()) == {"recipe sft_tiny"}
    config.env_vars["X"] = 1
    config.model.bf16 = False
    config.optimizer = OptimizerConfig(lr=1.0)
    assert sorted(Provenance.of(config).user_paths) == [
        "env_vars",
        "env_vars.X",
        "model.bf16",
        "optimizer",
        "optimizer.lr",
    ]


def test_what_was_set_and_only_that_is_in_a_file_without_defaults():
    config = RECIPES["gpt_tiny"].build()
    config.model.bf16 = False  # the default
    plain = config.to_dict(defaults=False)
    assert plain["model"]["bf16"] is False
    assert "fp16" not in plain["model"]
    read = type(config).from_dict(plain)
    assert given_fields(read.model) == given_fields(config.model)
    assert Provenance.of(read).by_user("model.bf16")


def test_a_program_that_modifies_a_recipe_keeps_what_it_set(tmp_path):
    config = RECIPES["llama31_8b"].build()
    config.perf = "h100_fp8"
    runtime_config_update(config, world_size=8, facts=facts(config))
    assert (config.model.fp8, config.mixed_precision) == ("hybrid", "bf16_with_fp8_current_scaling_mixed")
    config = RECIPES["llama31_8b"].build()
    config.model.bf16 = False
    with pytest.raises(
        ConfigError, match=r"model\.bf16: is false, but the precision recipe bf16_mixed sets true"
    ):
        runtime_config_update(config, world_size=8)
    config = RECIPES["gpt_tiny"].build()
    config.checkpoint.save = None
    complete(config, RunFolder.named(tmp_path, name="run"), Provenance.of(config), for_any_start=True)
    assert config.checkpoint.save is None
