"""Every rule on its own examples, and the rules of the section together."""

import dataclasses
from typing import get_args, get_type_hints

import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.rules import RULES, violations
from mb_schema.rules import Rule

HONOURED = {
    "trust",
    "save",
    "save_interval",
    "most_recent_k",
    "checksum",
    "save_optim",
    "save_rng",
    "save_tokenizer_assets",
    "ckpt_format",
    "storage_writers_per_rank",
    "fully_parallel_save",
    "save_retain_interval",
    "ckpt_assume_constant_structure",
    "verify_integrity",
    "on_save_error",
    "ckpt_fully_parallel_load_process_group",
    "ckpt_fully_parallel_save_process_group",
    "custom_manager_class",
    "async_write_results_mp_mode",
    "async_hang_seconds",
    "async_ckpt_cpu_priority",
    "async_ckpt_io_priority",
    "dist_ckpt_optim_fully_reshardable",
    "load",
    "pretrained_checkpoint",
    "ckpt_step",
    "finetune",
    "load_optim",
    "load_rng",
    "load_main_params_from_ckpt",
    "exit_on_missing_checkpoint",
    "use_tokenizer_model_from_checkpoint_args",
    "dist_ckpt_strictness",
    "ckpt_load_validate_sharding_integrity",
    "fully_parallel_load",
    "ckpt_fully_parallel_load_exchange_algo",
    "stream_ckpt_dequant",
    "strict_fsdp_dtensor_load",
    "dist_ckpt_workers",
}
MEANINGLESS_ALONE = {  # read only together with a field that a rule refuses
    "async_strategy": "async_save",
    "use_persistent_ckpt_worker": "async_save",
    "async_ckpt_use_cpu_shm": "async_save",
    "non_persistent_global_ckpt_dir": "non_persistent_ckpt_type",
    "non_persistent_local_ckpt_dir": "non_persistent_ckpt_type",
    "non_persistent_local_ckpt_algo": "non_persistent_ckpt_type",
    "replication_jump": "replication",
    "replication_factor": "replication",
    "auto_detect_ckpt_format": "ckpt_format",
    "hf_trust_remote_code": "also_save_hf_checkpoint",
    "hf_distributed_save": "also_save_hf_checkpoint",
    "hf_save_every_n_ranks": "also_save_hf_checkpoint",
}


def verdict(rule: Rule, values):
    return rule.message(values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_rejects_and_accepts_its_own_examples(rule):
    assert verdict(rule, rule.passes) is None
    assert verdict(rule, rule.fails)


def test_rule_ids_are_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_each_field_is_applied_or_rejected_or_depends_on_another():
    refused = {field.removeprefix("checkpoint.") for rule in RULES for field in rule.fields}
    fields = {field.name for field in dataclasses.fields(CheckpointConfig)}
    assert fields - refused - HONOURED == set(MEANINGLESS_ALONE) - refused
    assert set(MEANINGLESS_ALONE.values()) <= refused


def test_the_defaults_are_accepted():
    assert violations(CheckpointConfig()) == []


def test_all_violations_are_listed_with_value_reason_and_fix():
    problems = violations(CheckpointConfig(async_save=True, ckpt_step=5, most_recent_k=None))
    assert [problem.id for problem in problems] == ["V066", "CK01", "V068"]
    assert str(problems[2]) == (
        "checkpoint.ckpt_step: requires load (ckpt_step=5, load=null), because the step is searched for in the folder "
        "of checkpoint.load. Set checkpoint.load, or leave out checkpoint.ckpt_step."
    )


@pytest.mark.parametrize(
    ("async_save", "save", "worker", "wrong"),
    [
        (True, "x", True, False),
        (True, "x", False, True),
        (True, None, True, True),
        (False, None, False, False),
    ],
)
def test_a_background_save_needs_a_folder_and_a_persistent_worker(async_save, save, worker, wrong):
    (rule,) = (rule for rule in RULES if rule.id == "V066")
    assert bool(rule.test(async_save, save, worker)) is wrong


ZERO_IS_FINE = {"async_ckpt_cpu_priority", "async_ckpt_io_priority", "ckpt_step"}
MINUS_ONE_IS_FINE = {"most_recent_k"}
HUGE_IS_FINE = {
    "save_interval",
    "most_recent_k",
    "save_retain_interval",
    "async_hang_seconds",
    "non_persistent_save_interval",
    "replication_jump",
    "replication_factor",
    "ckpt_step",
}


def test_every_number_of_the_section_has_bounds():
    hints = get_type_hints(CheckpointConfig)
    numbers = {name for name, hint in hints.items() if {int, float} & {hint, *get_args(hint)}}
    section = {"save": "x", "load": "x", "non_persistent_ckpt_type": "global"}

    def accepted(value):
        return {name for name in numbers if not violations(CheckpointConfig(**{**section, name: value}))}

    assert accepted(0) == ZERO_IS_FINE
    assert accepted(-1) == MINUS_ONE_IS_FINE
    assert accepted(10**12) == HUGE_IS_FINE
    assert violations(CheckpointConfig(async_hang_seconds=float("nan")))


def test_a_hugging_face_copy_needs_complete_weights_on_the_shared_disk():
    (rule,) = (rule for rule in RULES if rule.id == "V067")
    assert rule.test(True, "torch_dist", "local")
    assert not rule.test(True, "torch_dist", "global")


def test_unreadable_initial_weights_are_rejected(tmp_path):
    (rule,) = (rule for rule in RULES if rule.id == "V064")
    assert rule.test(str(tmp_path)) is None
    assert "cannot be read (OSError: " in rule.test(str(tmp_path / ("x" * 300)))


def test_local_checkpoints_without_their_library_are_rejected_only_where_that_is_known():
    (rule,) = (rule for rule in RULES if rule.id == "CK13")
    answers = [rule.test("local", nvidia_resiliency_ext_installed=known) for known in (True, None, False)]
    assert [answer is None for answer in answers] == [True, True, False]
    assert rule.test("global", nvidia_resiliency_ext_installed=False) is None


def test_fine_tuning_needs_weights(tmp_path):
    (rule,) = (rule for rule in RULES if rule.id == "V244")
    assert rule.test(True, None, str(tmp_path / "nowhere")).endswith("nowhere has no checkpoint")
    (tmp_path / "progress.txt").touch()  # a run that ended before its first save
    (tmp_path / ".saving_iter_0000010.x").mkdir()
    assert rule.test(True, None, str(tmp_path)).endswith(f"load={tmp_path} has no checkpoint")
    (tmp_path / "iter_0000010").mkdir()
    assert rule.test(True, None, str(tmp_path)) is None
    assert rule.test(True, None, str(tmp_path.with_name("x" * 300)))  # the system refuses to look there


def test_finalize_applies_the_rules_of_the_section():
    CheckpointConfig().finalize()
    with pytest.raises(CheckpointConfigError) as refused:
        CheckpointConfig(ckpt_step=3, load_main_params_from_ckpt=True).finalize()
    assert {"[V065]", "[V068]"} <= {line.partition(" ")[0] for line in str(refused.value).splitlines()}


@pytest.mark.parametrize(
    ("version", "breaks", "too_old"),
    [
        ("0.2.1", False, True),
        ("0.3.0", False, False),
        ("0.4.1+cu12", True, False),
        ("0.5.0", True, False),
        ("0.6.0a0", False, False),
        ("1.4", False, False),
        ("unknown", False, False),
    ],
)
def test_only_some_versions_of_nvrx_can_be_installed_next_to_megatron(version, breaks, too_old):
    rules = {rule.id: rule for rule in RULES}
    import_rule, local_rule = rules["CK50"], rules["CK51"]
    assert bool(import_rule.test(version)) is breaks
    assert bool(local_rule.test("local", nvidia_resiliency_ext_version=version)) is too_old
    assert local_rule.test("global", nvidia_resiliency_ext_version=version) is None


def test_fsdp_dtensor_with_torch_fsdp2():
    (rule,) = [rule for rule in RULES if rule.id == "V130"]
    assert rule.test("fsdp_dtensor", None, "/c", True, True, None) == (
        "is fsdp_dtensor, but use_torch_fsdp2 is true"
    )
    assert rule.test("fsdp_dtensor", None, None, None, None, None) is None
