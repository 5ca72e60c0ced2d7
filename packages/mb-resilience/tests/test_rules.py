from dataclasses import fields

import pytest

from mb_resilience import (
    RULES,
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
    StragglerDetectionConfig,
)
from mb_resilience.errors import SectionError

SECTIONS = {
    "ft": FaultToleranceConfig,
    "straggler": StragglerDetectionConfig,
    "nvrx_straggler": NVRxStragglerDetectionConfig,
    "inprocess_restart": InProcessRestartConfig,
    "rerun_state_machine": RerunStateMachineConfig,
}


FACTS = {
    "facts.processes": 8,
    "facts.local_world_size": 8,
    "facts.world_size": 2,
    "facts.nvidia_resiliency_ext_installed": True,
    "facts.nvidia_resiliency_ext_version": "0.3.0",
    "facts.cpu": False,
}
"""Facts about the machine, in addition to the sections."""

FURTHER = {
    "checkpoint.save",
    "model.cuda_graph_impl",
    "model.cuda_graph_modules",
    "model.cuda_graph_scope",
    "model.overlap_moe_expert_parallel_comm",
}
"""Fields of other sections, to which those of this package are related."""


def outcome(rule, values):
    return rule.message(values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_and_accepts_its_examples(rule):
    assert outcome(rule, rule.fails)
    assert outcome(rule, rule.passes) is None


def test_ids_are_unique():
    ids = [rule.id for rule in RULES]
    assert sorted(set(ids)) == sorted(ids)


def test_every_rule_reads_fields_that_exist():
    known = {f"{name}.{field.name}" for name, section in SECTIONS.items() for field in fields(section)}
    assert {path for rule in RULES for path in rule.fields} <= known | FACTS.keys() | FURTHER


def test_default_sections_pass_every_rule():
    values = {
        f"{name}.{f.name}": getattr(kind(), f.name) for name, kind in SECTIONS.items() for f in fields(kind)
    }
    assert [rule.id for rule in RULES if outcome(rule, values | FACTS)] == []


def test_every_field_is_read_by_a_rule():
    read = {path for rule in RULES for path in rule.fields}
    known = {f"{name}.{field.name}" for name, section in SECTIONS.items() for field in fields(section)}
    assert known - read == set()


@pytest.mark.parametrize(
    ("changed", "ids"),
    [
        ({}, []),
        ({"rerun_mode": "report_determinism_stats", "error_injection_rate": 5}, []),
        ({"error_injection_rate": -1}, ["R08"]),
        ({"error_injection_type": "persistent_error", "spiky_loss_factor": 3.0}, ["R15"]),
        ({"check_loss_immediately": True, "check_for_nan_in_loss": False}, ["R15"]),
        ({"check_loss_immediately": True}, []),
    ],
)
def test_rerun_state_machine(changed, ids):
    section = RerunStateMachineConfig(**changed)
    values = {f"rerun_state_machine.{f.name}": getattr(section, f.name) for f in fields(section)}
    rules = [rule for rule in RULES if rule.fields[0].startswith("rerun_state_machine.")]
    assert [rule.id for rule in rules if outcome(rule, values)] == ids


@pytest.mark.parametrize(
    ("changed", "ids"),
    [
        ({"enable_ft_package": True, "calc_ft_timeouts": True}, []),
        ({"simulate_fault": True, "simulated_fault_type": "rank_hung", "simulated_fault_rank": 1}, []),
        ({"simulate_fault": True, "simulated_fault_rank": -1}, ["R22"]),
        ({"simulate_fault": True, "simulated_fault_base_delay": -1}, ["R22"]),
        ({"simulated_fault_rank": 7, "simulated_fault_base_delay": 3}, ["R23"]),
        ({"simulated_fault_type": "rank_killed"}, ["R23"]),
        ({"calc_ft_timeouts": True}, ["R23"]),
    ],
)
def test_fault_tolerance(changed, ids):
    section = FaultToleranceConfig(**changed)
    values = {f"ft.{f.name}": getattr(section, f.name) for f in fields(section)} | {"checkpoint.save": "/c"}
    rules = [rule for rule in RULES if rule.fields[0].startswith("ft.")]
    assert [rule.id for rule in rules if outcome(rule, values | FACTS)] == ids


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False}, "no score to calculate"),
        ({"report_time_interval": 0.0}, "report_time_interval=0.0"),
        ({"gpu_individual_perf_threshold": -0.1}, "threshold -0.1"),
        ({"report_time_interval": float("nan")}, "is not a positive interval"),
        ({"enabled": False, "report_time_interval": -1.0}, None),
    ],
)
def test_v071(changed, words):
    (rule,) = [rule for rule in RULES if rule.id == "V071"]
    section = NVRxStragglerDetectionConfig(**{"enabled": True, **changed})
    message = outcome(rule, {path: getattr(section, path.split(".")[1]) for path in rule.fields})
    assert (words is None and message is None) or words in message


def test_finalize_checks_the_section_of_the_detector():
    NVRxStragglerDetectionConfig().finalize()
    NVRxStragglerDetectionConfig(report_time_interval=0.0).finalize()
    with pytest.raises(
        SectionError, match=r"^\[V071\] .*report_time_interval=0\.0 is not a positive interval"
    ):
        NVRxStragglerDetectionConfig(enabled=True, report_time_interval=0.0).finalize()


@pytest.mark.parametrize(
    ("changed", "ids"),
    [
        ({"log_straggler": True, "straggler_ctrlr": True, "straggler_ctrlr_port": 61000}, []),
        ({"log_straggler": True, "straggler_ctrlr": True, "disable_straggler_on_startup": True}, []),
        ({"log_straggler": True, "straggler_ctrlr": True, "straggler_ctrlr_port": 0}, []),
        ({"log_straggler": True, "straggler_ctrlr": True, "straggler_ctrlr_port": -1}, ["R31"]),
        ({"log_straggler": True, "straggler_ctrlr_port": 61000}, ["R36"]),
        ({"log_straggler": True, "straggler_ctrlr_host": ""}, ["R36"]),
        ({"log_straggler": True, "disable_straggler_on_startup": True}, ["R37"]),
        ({"log_straggler": True, "enable_straggler_on_startup": False}, ["R37"]),
        ({"log_straggler": True, "straggler_minmax_count": 0}, ["R31"]),
        ({"straggler_minmax_count": 3}, ["R12"]),
    ],
)
def test_straggler_timer(changed, ids):
    section = StragglerDetectionConfig(**changed)
    values = {f"straggler.{f.name}": getattr(section, f.name) for f in fields(section)}
    rules = [rule for rule in RULES if rule.fields[0].startswith("straggler.")]
    assert [rule.id for rule in rules if outcome(rule, values)] == ids
