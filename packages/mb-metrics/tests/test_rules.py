import ast
import inspect
import re
import sys
from dataclasses import asdict, fields

import pytest

import mb_metrics.config
import mb_metrics.profiling.config
import mb_metrics.profiling.rules
import mb_metrics.rules
import mb_metrics.section_check
from mb_metrics import RULES, LoggerConfig, ProfilingConfig, TensorInspectConfig
from mb_metrics.errors import SectionError


def judge(rule, values):
    return rule.message(values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_accepts_and_rejects_its_examples(rule):
    assert judge(rule, rule.fails)
    assert judge(rule, rule.passes) is None
    assert rule.why
    assert rule.fix


def test_rules_have_unique_ids_and_real_fields():
    assert len({rule.id for rule in RULES}) == len(RULES)
    sections = {"logger": LoggerConfig, "profiling": ProfilingConfig, "tensor_inspect": TensorInspectConfig}
    known = {f"{name}.{field.name}" for name, section in sections.items() for field in fields(section)}
    known |= {"train.train_iters", "model.cuda_graph_impl", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"}
    assert {path for rule in RULES for path in rule.fields if not path.startswith("facts.")} <= known


def test_the_defaults_pass_every_rule():
    sections = {
        "logger": LoggerConfig(),
        "profiling": ProfilingConfig(),
        "tensor_inspect": TensorInspectConfig(),
    }
    values: dict[str, object] = {"train.train_iters": 100}
    for section, config in sections.items():
        values |= {f"{section}.{name}": value for name, value in asdict(config).items()}
    facts = {path: False for rule in RULES for path in rule.fields if path.startswith("facts.")}
    assert [rule.id for rule in RULES if judge(rule, values | facts)] == []


def test_settings_of_a_disabled_back_end_require_no_package():
    values = {"logger.comet_api_key": "x", "logger.comet_project": None, "facts.comet_ml_installed": False}
    (rule,) = [rule for rule in RULES if rule.id == "V055"]
    assert judge(rule, values) is None


def test_messages_name_the_values():
    messages = {rule.id: judge(rule, rule.fails) for rule in RULES}
    assert messages["V052"] == "requires mlflow_run_name (mlflow_experiment=gpt, mlflow_run_name='')"
    assert messages["V055"] == "requires comet_ml, which is not installed (comet_project=x)"
    assert messages["L02"] == "requires wandb, which is not installed (wandb_project=x)"
    assert messages["L31"] == "leaves other settings without effect (wandb_project=null, wandb_exp_name=x)"
    assert messages["L35"] == "contains a password (https://***@mlflow.example)"
    assert messages["L05"] == "must be at least 1 (log_interval=0)"


@pytest.mark.parametrize("module", [mb_metrics.config, mb_metrics.profiling.config])
def test_every_field_has_a_docstring(module):
    for section in (
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)
    ):
        body = [node for node in section.body[1:] if not isinstance(node, ast.FunctionDef)]
        assert all(isinstance(node, ast.AnnAssign) for node in body[::2])
        assert all(isinstance(node.value.value, str) for node in body[1::2])
        assert len(body) == 2 * len(fields(getattr(module, section.name)))


@pytest.mark.parametrize(
    ("section", "ids"),
    [
        (LoggerConfig(mlflow_experiment="gpt", comet_project="gpt"), ["V052", "V054"]),
        (ProfilingConfig(use_nsys_profiler=True, use_pytorch_profiler=True), ["V070"]),
        (ProfilingConfig(profile_step_start=5, profile_step_end=4), ["V070d"]),
        (TensorInspectConfig(enabled=True, feature_dirs=["mine"]), ["V072", "L63"]),
    ],
)
def test_a_section_is_checked_in_isolation(section, ids):
    with pytest.raises(SectionError) as refused:
        section.finalize()
    found = [problem.id for problem in refused.value.problems]  # also of trackers that are not installed here
    assert [each for each in found if each in ids] == ids
    assert re.findall(r"^\[([LV]\d+\w?)\] ", str(refused.value), re.MULTILINE) == found


def test_sections_that_can_work_are_finalized_any_number_of_times():
    for section in (LoggerConfig(), ProfilingConfig(), TensorInspectConfig()):
        before = asdict(section)
        section.finalize()
        section.finalize()
        assert asdict(section) == before


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(mb_metrics.section_check, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    with pytest.raises(ModuleNotFoundError, match="requires mlflow, which is not installed"):
        LoggerConfig(mlflow_experiment="gpt", mlflow_run_name="first").finalize()
