"""`mb check`, `mb explain` and `mb config show`."""

import json
import sys

import pytest
from typer.testing import CliRunner

from mb_config import ConfigError
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import preflight
from mb_trainer.cli.app import app
from mb_trainer.registry import REGISTRY
from mb_trainer.requests import read_request
from mb_trainer.run.preflight import CHECKS, resolve_and_check, target_facts


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mb(*words):
    return CliRunner().invoke(app, words)


def test_a_good_recipe_has_no_problems():
    result = mb("check")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("gpt_tiny, 1 process: 0 errors, 0 warnings of ")


def test_invalid_adapters_are_reported_before_the_launch():
    weights = "checkpoint.pretrained_checkpoint=weights"
    result = mb(
        "check", "peft=lora", weights, "peft.dim=0", "peft.dropout=1.5", "peft.target_modules=[]", "--json"
    )
    reported = [problem["id"] for problem in json.loads(result.stdout)["problems"]]
    assert [rule for rule in reported if rule.startswith("PE")] == ["PE01", "PE02", "PE03"]


def test_a_run_folder_without_a_name_is_not_the_current_one():
    result = mb("check", "--out", "")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is empty" in result.stderr
    assert mb("check", "--out", ".").exit_code == 0


def test_all_mistakes_are_reported_at_once_with_value_reason_advice_and_origin():
    result = mb("check", "train.global_batch_size=7", "optimizer.lr=-1.0")
    assert result.exit_code == 1
    assert (
        """\
train
  error V242  train.global_batch_size: 7 is not a multiple of 8 (micro batch 8 x data parallel 1)
      because each replica processes the same number of microbatches
      Change train.global_batch_size or train.micro_batch_size, or set train.decrease_batch_size_if_needed=true.
      train.global_batch_size from command line
      train.micro_batch_size from recipe gpt_tiny
"""
        in result.stdout
    )
    assert "error V208  optimizer.lr: must not be negative (-1.0)" in result.stdout


def test_a_mere_consequence_of_a_mistake_is_not_reported():
    assert "V119" not in mb("check", "train.global_batch_size=7").stdout


def test_a_problem_that_only_a_resolved_configuration_shows_is_reported():
    assert "V119" in mb("check", "validation.eval_micro_batch_size=3").stdout


def test_json_has_problems_and_changes():
    answer = json.loads(mb("check", "--json", "--world-size", "2", "train.global_batch_size=24").stdout)
    (problem,) = answer["problems"]
    assert (problem["id"], problem["values"]["train.global_batch_size"]) == ("V242", 24)
    assert problem["origin"]["train.global_batch_size"] == "command line"
    assert {"field", "from", "to", "why"} == set(answer["changes"][0])


def test_a_key_that_cannot_be_read_is_exit_code_2():
    assert mb("check", "train.train_itres=5").exit_code == 2


def test_settings_that_cannot_be_read_are_reported_with_all_other_problems(tmp_path):
    (tmp_path / "more.yaml").write_text("train: {train_iters: eight, global_batch_size: 7}")
    result = mb(
        "check", "--config", "more.yaml", "optimizer.lr=-1.0", "optimizer.lrr=1", "logger.log_interval=x"
    )
    assert (result.exit_code, "V242" in result.stdout, "V208" in result.stdout) == (2, True, True)
    for text in ("train.train_iters: expected int", "optimizer.lrr", "logger.log_interval: expected int"):
        assert text in result.stderr
    assert "2 errors, 0 warnings" in result.stderr
    assert "; 3 settings cannot be read" in result.stderr


def test_rules_do_not_read_a_field_that_cannot_be_read():
    result = mb("check", "train.global_batch_size=7", "train.micro_batch_size=x", "--json")
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (2, [])


def test_a_configuration_file_with_a_wrong_type_is_checked_as_far_as_it_goes(tmp_path):
    text = mb("config", "show", "gpt_tiny").stdout
    (tmp_path / "whole.yaml").write_text(
        text.replace("log_interval: 10", "log_interval: ten").replace("  lr: 0.002", "  lr: -1.0")
    )
    result = mb("check", "whole.yaml")
    assert (result.exit_code, "V208" in result.stdout) == (2, True)
    assert "logger.log_interval: expected int, not 'ten'" in result.stderr
    (tmp_path / "whole.yaml").write_text(text.replace("  num_layers:", "  num_layer:"))
    assert (mb("check", "whole.yaml").exit_code, mb("pretrain", "whole.yaml").exit_code) == (2, 2)


def test_a_check_for_another_machine_reports_what_it_cannot_know():
    assert "give --te VERSION" in mb("check", "--world-size", "1024", "--gpu", "h100").stderr


def test_a_package_that_is_missing_here_is_a_remark_for_another_machine(monkeypatch):
    for module in ("mb_config.preflight.facts", "mb_config.cli.check"):
        monkeypatch.setattr(f"{module}.process_packages", lambda: {"wandb_installed": False})
    words = ("check", "logger.wandb_project=x", "logger.wandb_exp_name=y")
    here, there = mb(*words), mb(*words, "--gpu", "h100")
    assert (here.exit_code, "error L02" in here.stdout) == (1, True)
    assert (there.exit_code, "L02" in there.stdout) == (0, False)
    assert "on this machine, and perhaps not on h100: [L02] logger.wandb_project" in there.stderr


def test_a_default_that_follows_another_field_is_no_conflict():
    words = ("check", "gpt_tiny", "ddp.overlap_param_gather=true", "ddp.overlap_grad_reduce=true")
    words += ("ddp.use_distributed_optimizer=true", "--json")
    assert json.loads(mb(*words).stdout)["problems"] == []


@pytest.mark.parametrize(
    ("recipe", "setting", "rule"),
    [
        ("mimo_tiny", "validation.full_validation=true", "T35"),
        ("t5_tiny", "validation.multiple_validation_sets=true", "T33"),
    ],
)
def test_validation_that_data_cannot_do_is_an_error(recipe, setting, rule):
    result = mb("check", recipe, setting)
    assert (result.exit_code, f"error {rule}" in result.stdout) == (1, True)


EIGHT_BITS = ["model.fp8=hybrid", "model.bf16=true"]


def test_a_check_for_this_machine_takes_the_layers_that_a_run_would_have():
    result = mb("check", *EIGHT_BITS)
    assert (result.exit_code, "error G07" in result.stdout) == (1, True)
    assert "checked with local layers, as it would run on this machine" in result.stderr
    assert "error G07  " in mb("pretrain", *EIGHT_BITS).stderr
    assert mb("check", *EIGHT_BITS, "--gpu", "h100", "--te", "2.20").exit_code == 0


def test_a_recipe_for_gpus_is_refused_here_and_passes_for_the_gpu_that_is_named():
    precision = "mixed_precision=bf16_with_fp8_current_scaling_mixed"
    words = ["check", "deepseek_v3", "--world-size", "1024", precision]
    here = mb(*words)
    assert here.exit_code == 1
    assert (
        """\
      Unset fp8 and fp4, or use transformer_impl "transformer_engine" on a GPU.
      Or check it for the GPU that it is meant for (option --gpu of check and plan): this machine has none.
      model.transformer_impl from resolve: no Transformer Engine on this machine
"""
        in here.stdout
    )
    assert mb(*words, "--gpu", "h100").exit_code == 0


MISSING = {
    "sources": ["dataset.sources=[nowhere]"],
    "key": ["dataset.sources=[text.jsonl]", "dataset.json_key=body"],
    "data_path": ["--config", "pairs.yaml"],
    "answers": ["sft_tiny", "dataset.dataset_root=nowhere"],
}


@pytest.mark.parametrize("words", MISSING.values(), ids=MISSING)
def test_missing_data_is_an_error_on_the_machine_that_is_checked(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 9)
    (tmp_path / "pairs.yaml").write_text(
        "base: gpt_tiny\ndataset: {_target_: GPTDatasetConfig, seq_length: 256, data_path: nowhere,\n"
        "  reset_position_ids: false, reset_attention_mask: false, eod_mask_loss: false}\n"
    )
    result = mb("check", *words)
    assert (result.exit_code, "error D120  dataset" in result.stdout) == (1, True)
    other = mb("check", *words, "--gpu", "h100")
    assert "D120" not in other.stdout
    has_weights = "sft_tiny" not in words
    assert (other.exit_code, "on this machine: " in other.stderr) == (int(not has_weights), has_weights)


def test_data_that_is_there_passes(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 9)
    assert mb("check", f"dataset.sources=[{tmp_path / 'text.jsonl'}]").exit_code == 0


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("dataset.num_workers=-1", "D02"),
        ("dataset.seq_length=0", "D03"),
        ("dataset.validation_fraction=2", "D05"),
    ],
)
def test_a_dataset_that_rules_reject_is_not_read(setting, rule):
    result = mb("check", setting)
    assert (result.exit_code, f"error {rule}" in result.stdout) == (1, True)
    assert result.stderr.startswith("gpt_tiny, 1 process: ")


@pytest.mark.parametrize(
    ("recipe", "setting", "rule"),
    [
        ("gpt_tiny", "dataset.inter_document_masking=true", "G26"),
        ("t5_tiny", "dataset.inter_document_masking=true", "D58"),
        ("gpt_tiny", "dataset.hybrid_context_parallel=true", "D48"),
        ("gpt_tiny", "dataset.num_dataset_builder_threads=0", "D49"),
    ],
)
def test_an_unsupported_setting_of_the_data_is_one_problem(recipe, setting, rule):
    problems = json.loads(mb("check", recipe, setting, "--json").stdout)["problems"]
    assert [problem["id"] for problem in problems] == [rule]


CONFLICTS = {
    "V143": ("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=false"),
    "V144": ("ddp.overlap_param_gather=true", "optimizer.overlap_param_gather=false"),
    "V115": ("rng.te_rng_tracker=true", "model.use_te_rng_tracker=false"),
    "V139d": ("train.eval_iters=5", "validation.eval_iters=7"),
    "V017": ("mixed_precision=bf16_mixed", "model.bf16=false"),
    "V170": ("ddp.use_megatron_fsdp=true", "dist.use_megatron_fsdp=false"),
    "V171": ("ddp.use_megatron_fsdp=true", "ddp.use_distributed_optimizer=false"),
}
"""Mutually exclusive settings, by the rule with which resolving rejects them."""


@pytest.mark.parametrize("rule", CONFLICTS)
def test_settings_that_resolving_rejects_are_rejected_by_every_command(rule):
    words = CONFLICTS[rule]
    checked = mb("check", *words, "--json")
    errors = [item["id"] for item in json.loads(checked.stdout)["problems"] if item["severity"] == "error"]
    assert (checked.exit_code, rule in errors) == (1, True)
    planned, swept = mb("plan", *words), mb("sweep", *words, "train.micro_batch_size=1,2")
    assert (planned.exit_code, planned.stdout, f"error {rule}  " in planned.stderr) == (1, "", True)
    assert (swept.exit_code, "0 rejected by them" in swept.stdout, f"\n{rule}  " in swept.stdout) in (
        (1, True, True),  # rejected by resolving alone
        (1, False, False),  # rejected by other rules before the configuration is resolved
    )
    request = read_request(words)
    with pytest.raises(ConfigError, match=rf"\[{rule}\]"):
        resolve_and_check(request.config, world_size=1, provenance=request.provenance)


def test_the_error_of_an_unknown_recipe_shows_the_form_of_an_override():
    result = mb("check", "nosuch")
    assert (result.exit_code, "An override has the form section.field=value." in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["check", "plan", "sweep"])
def test_a_version_that_is_none_is_exit_code_2(command):
    result = mb(command, "gpt_tiny", "--te", "abc")
    assert (result.exit_code, "'abc' is not a version" in result.stderr) == (2, True)


@pytest.mark.parametrize("version", ["2", "2.20", "2.9.0rc1", "2.2.0.dev0+3f2a"])
def test_a_version_may_have_endings(version):
    assert mb("check", "gpt_tiny", "--gpu", "h100", "--te", version).exit_code == 0


@pytest.mark.parametrize("name", ["nosuch.X", "Manager", "mb_checkpoint..X"])
def test_a_manager_that_cannot_be_found_is_refused(name):
    result = mb("check", f"checkpoint.custom_manager_class={name}")
    assert (result.exit_code, "error CK15" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("words", "origins"),
    [
        (
            ("--config=run.yaml", "model.sequence_parallel=true"),
            ["model.sequence_parallel from command line", "model.tensor_model_parallel_size from run.yaml:1"],
        ),
        (
            ("model.sequence_parallel=true",),
            [
                "model.sequence_parallel from command line",
                "model.tensor_model_parallel_size from the default",
            ],
        ),
        (
            ("train.micro_batch_size=7",),
            ["train.global_batch_size from recipe gpt_tiny", "train.micro_batch_size from command line"],
        ),
    ],
)
def test_a_conflict_of_two_fields_names_the_origin_of_both(words, origins, tmp_path):
    (tmp_path / "run.yaml").write_text("model: {tensor_model_parallel_size: 1}\n")
    lines = [line.strip() for line in mb("check", "gpt_tiny", *words).stdout.splitlines()]
    assert [line for line in lines if " from " in line] == origins
    refused = mb("pretrain", "gpt_tiny", *words)
    assert [line.strip() for line in refused.stderr.splitlines() if " from " in line] == origins


@pytest.fixture
def forgotten():
    """Forget a module that a test imports."""
    yield
    REGISTRY.imported.remove("mine_storage")
    REGISTRY.accepted.remove("mine_storage")
    del sys.modules["mine_storage"]


@pytest.mark.usefixtures("forgotten")
def test_a_manager_in_a_file_needs_an_import_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "mine_storage.py").write_text("raise SystemExit\n")
    (tmp_path / "run.yaml").write_text("checkpoint: {custom_manager_class: mine_storage.Manager}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = mb("check", "gpt_tiny", "--config=run.yaml")
    assert (result.exit_code, "'mine_storage.Manager' is not allowed in a file" in result.stderr) == (2, True)
    assert "run.yaml:1" in result.stderr
    assert "--import" in result.stderr
    assert mb("check", "checkpoint.custom_manager_class=mine_storage.Manager").exit_code == 0
    (tmp_path / "mine_storage.py").write_text("class Manager: ...\n")
    REGISTRY.import_module("mine_storage")
    assert mb("check", "gpt_tiny", "--config=run.yaml").exit_code == 0


def test_a_rule_is_explained_with_both_examples():
    page = mb("explain", "v242").stdout
    assert page.startswith("V242")
    assert all(word in page for word in ("fails", "passes", "why"))


def test_a_constraint_that_is_no_rule_is_explained_by_the_equivalent_rules():
    page = mb("explain", "C14").stdout
    assert page.startswith("C14 is a constraint of CloudAI's on a launch, and no rule of its own. ")
    assert all(f"\n\n{rule}" in page for rule in ("V152", "V153"))
    assert "the recipe deepseek_v3 sets one" in mb("explain", "c18").stdout


def test_an_unknown_rule_is_exit_code_2_with_the_nearest():
    result = mb("explain", "V2422")
    assert (result.exit_code, "Nearest: V24" in result.stderr) == (2, True)


def test_config_show_prints_resolved_values_with_their_origin():
    lines = mb("config", "show", "optimizer.lr=0.5", "--origin").stdout.splitlines()
    assert any(line.split() == ["lr:", "0.5", "#", "command", "line"] for line in lines)
    assert any("eval_global_batch_size: 8" in line and "resolve: V118" in line for line in lines)
    assert any("save: runs/gpt_tiny/checkpoints" in line and "run folder" in line for line in lines)


def test_config_show_loads_back(empty_folder):
    (empty_folder / "run.yaml").write_text(mb("config", "show").stdout)
    assert mb("check", "run.yaml").exit_code == 0


def test_config_show_of_a_rejected_configuration_prints_it_and_the_reason():
    result = mb("config", "show", "train.global_batch_size=7")
    assert (
        result.exit_code,
        "global_batch_size: 7" in result.stdout,
        "error V242  train.global_batch_size: " in result.stderr,
    ) == (
        1,
        True,
        True,
    )


LOCAL = ("llama31_8b", "--gpu", "h100", "--world-size", "8", "model.transformer_impl=local")


def test_a_recipes_kernels_that_another_machine_lacks_are_switched_off_and_shown():
    shown = mb("check", *LOCAL)
    assert shown.exit_code == 0
    assert "resolved: model.masked_softmax_fusion: True -> False (KN05: " in shown.stderr
    assert "resolved: model.sequence_parallel: True -> False (KN07: " in shown.stderr
    assert "warning O04b  comm_overlap.tp_comm_overlap: needs Transformer Engine's layers" in shown.stdout
    assert "O03" not in shown.stdout
    changes = json.loads(mb("check", *LOCAL, "--json").stdout)["changes"]
    switched = {change["field"]: change["to"] for change in changes}
    assert (switched["model.masked_softmax_fusion"], switched["model.sequence_parallel"]) == (False, False)


def test_kernels_that_the_user_requests_are_rejected_or_declared_present():
    words = (*LOCAL, "model.masked_softmax_fusion=true", "model.gradient_accumulation_fusion=true")
    refused = mb("check", *words)
    assert refused.exit_code == 1
    assert "error KN04  model.gradient_accumulation_fusion" in refused.stdout
    assert "error KN05  model.masked_softmax_fusion" in refused.stdout
    assert mb("check", *words, "--apex").exit_code == 0


def test_layers_of_transformer_engine_where_it_is_not_installed():
    facts = {**target_facts(TargetMachine(world_size=1, gpu="h100")), "transformer_engine": False}
    default, chosen = read_request([]), read_request(["model.transformer_impl=transformer_engine"])
    found = [
        preflight(each.config, CHECKS, facts=facts, provenance=each.provenance) for each in (default, chosen)
    ]
    assert [str(change) for change in found[0].notable] == [
        "model.transformer_impl: transformer_engine -> local (KN01: these layers are Transformer Engine's)"
    ]
    assert [problem.id for problem in found[0].errors] == []
    assert [problem.id for problem in found[1].errors] == ["KN01"]


def test_a_run_sets_the_variable_of_nccl_that_its_graphs_need_and_shows_it(monkeypatch):
    graphs = ("check", "--gpu", "h100", "--te", "2.9", "model.cuda_graph_impl=transformer_engine")
    assert "resolved" not in mb(*graphs).stderr
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "resolved: env_vars.NCCL_GRAPH_REGISTER: None -> 0 (V152b: " in mb(*graphs).stderr
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    assert "error V152b" in mb(*graphs).stdout


def test_more_processes_than_gpus_are_refused():
    launch = ("check", "--gpu", "h100", "--te", "2.9", "train.global_batch_size=128", "--nproc")
    assert (
        "error H05  local_world_size: 16 processes on a machine with 8 visible GPUs"
        in mb(*launch, "16").stdout
    )
    assert mb(*launch, "8").exit_code == 0


def test_fp8_weights_need_the_distributed_optimizer():
    fp8 = ("check", "--gpu", "h100", "--te", "2.9", "mixed_precision=bf16_with_fp8_current_scaling_mixed")
    assert "error V122b  ddp.fp8_param_gather" in mb(*fp8).stdout
    assert mb(*fp8, "ddp.use_distributed_optimizer=true").exit_code == 0
