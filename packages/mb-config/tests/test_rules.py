"""Every rule rejects its failing example and accepts its passing one."""

import re
from dataclasses import fields

import pytest
import yaml

from mb_config import (
    RULES,
    ConfigContainer,
    MixedPrecisionConfig,
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    check,
    explain,
)
from mb_config.rules.external_fields import EXTERNAL_FIELDS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_rejects_and_accepts_its_examples(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_examples_contain_only_fields_that_the_rule_reads(rule):
    assert {*rule.fails, *rule.passes} <= set(rule.fields)


FACTS = {
    "world_size": 8,
    "env": {},
    "gpu": "h100",
    "gpus_per_node": 8,
    "local_world_size": 8,
    "cpu": False,
    "transformer_engine": True,
    "transformer_engine_version": "2.20.0",
    "torch_version": "2.11.0",
}
REQUIRE_A_VALUE = {"V056", "V118", "V208"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_fields_that_are_not_set_are_no_error(rule):
    known = {"env_vars": {}, **{f"facts.{name}": value for name, value in FACTS.items()}}
    message = rule.message(known)
    assert (message is not None) == (rule.id in REQUIRE_A_VALUE)


def test_ids_are_unique():
    ids = [rule.id for rule in RULES]
    assert sorted(ids) == sorted(set(ids))


def our_fields():
    """Return section to names of its fields, for the sections of this package."""
    kinds = {
        item.name: item.default_factory
        for item in fields(ConfigContainer)
        if callable(item.default_factory) and item.name != "env_vars"
    }
    kinds |= {"train": TrainingConfig, "optimizer": OptimizerConfig, "scheduler": SchedulerConfig}
    kinds["mixed_precision"] = MixedPrecisionConfig
    return {section: {item.name for item in fields(kind)} for section, kind in kinds.items()}


def test_fields_exist_in_the_sections_or_are_listed_as_external():
    ours = our_fields()
    read = {path for rule in RULES for path in rule.fields if not path.startswith("facts.")}
    whole = {path for path in read if "." not in path}
    unknown = {p for p in read - whole if p.partition(".")[2] not in ours.get(p.partition(".")[0], ())}
    assert whole <= {item.name for item in fields(ConfigContainer)}
    assert unknown - set(EXTERNAL_FIELDS) == {"ddp.megatron_fsdp_version"}, (
        "a field that only later versions have"
    )
    assert set(EXTERNAL_FIELDS) <= unknown


def test_explain_prints_both_examples_as_in_a_file():
    rule = next(rule for rule in RULES if rule.id == "V242")
    text = explain(rule)
    assert text.splitlines() == [
        "V242 (error)",
        "reads:  train.global_batch_size, train.micro_batch_size, train.decrease_batch_size_if_needed, "
        "model.tensor_model_parallel_size, model.pipeline_model_parallel_size, model.context_parallel_size, "
        "facts.world_size",
        "why:    each replica processes the same number of microbatches",
        "fix:    Change train.global_batch_size or train.micro_batch_size, or set "
        "train.decrease_batch_size_if_needed=true.",
        "fails:",
        "  train:",
        "    global_batch_size: 32",
        "    micro_batch_size: 3",
        "  facts:  # not in a file: set by options, the launcher or the machine",
        "    world_size: 8",
        "message: train.global_batch_size: 32 is not a multiple of 24 (micro batch 3 x data parallel 8)",
        "passes:",
        *text.partition("passes:\n")[2].splitlines(),
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_examples_of_an_explanation_are_yaml(rule):
    text = explain(rule)
    assert yaml.safe_load(text.partition("fails:\n")[2].partition("message:")[0])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_problem_is_a_sentence_with_values_as_in_a_file(rule):
    message = rule.message(rule.fails)
    assert re.fullmatch(r"\S.*[^.\s]", message)
    assert not re.search(r"(?<!segments:)\b(True|False|None)\b", message)
    assert re.fullmatch(r"[A-Z].*[^.]\.", rule.fix)
    assert re.fullmatch(r"([a-z]|NCCL|MXFP8|Megatron|ModelOpt|cuBLAS).*[^.]", rule.why)


def test_deterministic_mode_needs_the_algorithm_in_the_environment():
    sections = {"model": {"deterministic_mode": True}, "dist": {}}
    on_cpu = {**sections, "dist": {"distributed_backend": "gloo"}}
    assert [p.id for p in check(sections, RULES, facts={"env": {"NCCL_ALGO": "Ring,Tree"}})] == ["V141"]
    assert check(sections, RULES, facts={"env": {"NCCL_ALGO": "Ring"}}) == []
    assert check(on_cpu, RULES, facts={"env": {}}) == []
