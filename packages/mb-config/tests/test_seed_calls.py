"""Calls as documented by Megatron-Bridge: parameter `cfg`, world size from the environment, rules last."""

import inspect

import pytest

from mb_config import (
    ConfigError,
    ConfigReadError,
    MixedPrecisionConfig,
    mimo_runtime_config_update,
    runtime_config_update,
)
from mb_config.container.container import world_size_of_environment


def test_the_parameter_is_named_cfg(make):
    for function in (runtime_config_update, mimo_runtime_config_update):
        assert next(iter(inspect.signature(function).parameters)) == "cfg"
    runtime_config_update(cfg=make())


@pytest.mark.parametrize(("environment", "size"), [(None, 1), ("2", 2)])
def test_the_number_of_processes_is_that_of_the_environment(make, monkeypatch, environment, size):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if environment is not None:
        monkeypatch.setenv("WORLD_SIZE", environment)
    config, other = make(), make()
    config.set_data_parallel_size()
    runtime_config_update(other)
    assert config.data_parallel_size == other.data_parallel_size == size


@pytest.mark.parametrize("text", ["", "two", "0", "-1", "²"])
def test_an_environment_without_a_number_is_an_error(make, monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(
        ConfigReadError, match=r"WORLD_SIZE: .* is not a number of processes. Pass world_size"
    ):
        make().set_data_parallel_size()


def test_updating_raises_one_error_with_every_problem(make):
    config = make(mixed_precision=MixedPrecisionConfig(bf16=True))
    config.optimizer.bf16 = False
    config.train.micro_batch_size = 3
    config.rng.seed = 0
    with pytest.raises(ConfigError) as caught:
        runtime_config_update(config, world_size=1)
    assert {"V017", "V242", "V240"} <= {problem.id for problem in caught.value.problems}
    assert [problem.severity for problem in caught.value.problems] == ["error"] * len(caught.value.problems)


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_the_two_names_of_a_field_are_equal_after_every_assignment(kind):
    one, other = f"{kind}_param", f"{kind}_param_gather"
    for first, second in ((one, other), (other, one)):
        section = MixedPrecisionConfig(**{first: True})
        assert getattr(section, second) is True
        setattr(section, first, False)
        assert getattr(section, second) is False
        setattr(section, first, True)
        assert getattr(section, second) is True
    section.fp8_param = None
    assert section.fp8_param_gather in (True, False)


STEP = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({}, 1),
        ({"SLURM_NTASKS": "16", **STEP}, 16),
        ({"SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "8", **STEP}, 8),
        ({"WORLD_SIZE": "4", "SLURM_NTASKS": "16", **STEP}, 4),
        ({"SLURM_NTASKS": "16"}, 1),  # a batch script, which is one process
    ],
)
def test_the_world_size_is_that_of_torchrun_or_of_the_step_of_srun(environment, processes):
    assert world_size_of_environment(environment) == processes


def test_a_wrong_number_of_tasks_is_named():
    with pytest.raises(ConfigReadError, match=r"SLURM_NTASKS: 'many' is not a number of processes"):
        world_size_of_environment({"SLURM_NTASKS": "many", **STEP})
