"""Facts about this machine and about others."""

import pytest

from mb_config.preflight import facts
from mb_config.preflight.facts import ALLOW_OOM, TargetMachine, machine_facts, short_name_of_first


def known(gpus=(), environment=None, **target):
    return machine_facts(
        TargetMachine(world_size=1, **target),
        gpus=lambda variables: gpus,
        kernels={"apex_installed": False},
        environment=environment or {},
    )


def test_the_shell_takes_precedence_over_env_vars():
    section = {"NCCL_ALGO": "Ring", "A": 1}
    found = machine_facts(
        TargetMachine(), gpus=lambda variables: (), env_vars=section, environment={"NCCL_ALGO": "Tree"}
    )
    assert found["env"] == {"NCCL_ALGO": "Tree", "A": "1"}


def test_a_machine_without_a_gpu():
    assert {name: known()[name] for name in ("cpu", "gpu", "transformer_engine", "same_machine")} == {
        "cpu": True,
        "gpu": None,
        "transformer_engine": False,
        "same_machine": True,
    }


def test_the_visible_gpus_of_this_machine():
    found = known(gpus=("NVIDIA H100 80GB HBM3", None))
    assert (found["gpu"], found["gpus_per_node"], found["cpu"]) == ("h100", 2, False)


@pytest.mark.parametrize("names", [(), (None,), ("NVIDIA T1000",)])
def test_an_unknown_gpu_has_no_short_name(names):
    assert short_name_of_first(names) is None


def test_another_machine(monkeypatch):
    monkeypatch.setattr(facts, "installed_version", lambda module, distribution: None)
    found = known(gpu="h100")
    assert (found["gpu"], found["transformer_engine"], found["same_machine"]) == ("h100", None, None)
    assert (found["apex_installed"], known(gpu="h100", apex=True)["apex_installed"]) == (False, True)
    named = known(gpu="gb200", transformer_engine="2.20")
    assert (named["transformer_engine"], named["transformer_engine_version"], named["gpus_per_node"]) == (
        True,
        "2.20",
        72,
    )


def test_the_packages_of_another_machine_are_known_if_its_environment_is_that_of_this_process(monkeypatch):
    here = facts.process_packages()
    assert {name: known()[name] for name in here} == here
    monkeypatch.setattr(facts, "installed_version", lambda module, distribution: None)
    assert {name: known(gpu="h100")[name] for name in here} == dict.fromkeys(here)
    monkeypatch.setattr(facts, "installed_version", lambda module, distribution: "2.20")
    assert known(gpu="h100")["wandb_installed"] is here["wandb_installed"]


def test_apex_can_be_declared_for_another_machine_with_this_environment(monkeypatch):
    monkeypatch.setattr(facts, "installed_version", lambda module, distribution: "2.20")
    assert known(gpu="h100")["apex_installed"] is False
    assert known(gpu="h100", apex=True)["apex_installed"] is True
    assert known(gpus=("NVIDIA H100",), apex=True)["apex_installed"] is False


def test_the_version_of_a_package():
    assert facts.installed_version("yaml", "pyyaml") is not None
    assert facts.installed_version("no_such_module", "no-such-module") is None
    assert facts.installed_version("mb_config", "no-such-distribution") is None


def test_the_variable_is_a_fact():
    facts = machine_facts(
        TargetMachine(world_size=1), gpus=lambda _: ["NVIDIA H100"], environment={ALLOW_OOM: "1"}
    )
    assert facts["allow_oom"] is True
