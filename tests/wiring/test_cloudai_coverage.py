"""Constraints of CloudAI: each is a rule, is covered by rules, or is allowed with a reason."""

from typing import Any

from mb_launch.cloudai.constraints import CONSTRAINT_COVERAGE, CONSTRAINTS
from mb_launch.cloudai.definition import MegatronBridgeCmdArgs, MegatronBridgeTestDefinition
from mb_launch.cloudai.slurm_run import COMMANDS, FIELDS, PRECISIONS, trainer_arguments
from mb_trainer.requests import read_request
from mb_trainer.run.rules import RULES as ALL_RULES

SAME = {
    "C01": ["V030"], "C02": ["P05"], "C03": ["V030"], "C04": ["V242"], "C07": ["P09"], "C08": ["P05"],
    "C11": ["O09m"], "C13": ["V150"], "C14": ["V152", "V153"],
    "C15": ["K28"], "C16": ["K29"], "C17": ["K34"], "C19": ["P07"], "C20": ["O09f"],
}  # fmt: skip
"""Constraints that a rule of a package checks on a configuration."""

RULES = ("C10", "C12")
"""Constraints that have their own number as a rule."""

LEFT_OUT = {
    "C05": "Megatron Core allows it",
    "C06": "Megatron Core allows it but for pipeline stages, which FS05 rejects",
    "C09": "Megatron Core allows it: instances of the distributed optimizer need no FSDP",
    "C18": "any layout of stages is allowed",
}


def test_every_constraint_is_a_rule_or_has_a_reason() -> None:
    known = {rule.id for rule in ALL_RULES}
    assert [name for names in SAME.values() for name in names if name not in known] == []
    assert sorted([*SAME, *LEFT_OUT, *RULES]) == sorted(CONSTRAINTS)


def test_each_constraint_is_a_rule_or_has_its_coverage() -> None:
    known = {rule.id for rule in ALL_RULES}
    assert {*CONSTRAINTS} - known == {*CONSTRAINT_COVERAGE}
    assert {rule for each in CONSTRAINT_COVERAGE.values() for rule in each.rules} <= known
    assert all(each.rules or each.allowed for each in CONSTRAINT_COVERAGE.values())


def test_every_field_that_an_argument_sets_is_one_of_the_trainer() -> None:
    values: dict[str, Any] = {
        "dataset_root": None, "vocab_size": 100, "cuda_graph_scope": "attn", "recompute_modules": "mlp",
        "pipeline_model_parallel_layout": "Et|L", "profiling_ranks": [0, 1],
        "cuda_graph_impl": "local",
    }  # fmt: skip
    texts = {
        name for name, field in MegatronBridgeCmdArgs.model_fields.items() if "str" in str(field.annotation)
    }
    flags = {
        name for name, field in MegatronBridgeCmdArgs.model_fields.items() if "bool" in str(field.annotation)
    }
    given = {name: values.get(name, "text" if name in texts else name in flags or 1) for name in FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    repo = {"url": "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git", "commit": "main"}
    for task in COMMANDS:
        for precision in PRECISIONS:
            arguments: dict[str, Any] = {
                "model_family_name": "llama",
                "model_recipe_name": "llama31_8b",
                "hf_token": "hf_x",
                "task": task,
                "compute_dtype": precision,
            }
            arguments |= given if (task, precision) == ("pretrain", "bf16") else {}
            test = MegatronBridgeTestDefinition.model_validate(
                {"name": "all", "cmd_args": arguments, "git_repos": [repo]}
            )
            _, *words = trainer_arguments(test)
            assert read_request(words).name == "llama31_8b"
