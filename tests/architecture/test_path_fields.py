"""Each field that holds text is known: a path, which a rule keeps local, or something else."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from mb_config import check
from mb_trainer.config import ConfigContainer
from mb_trainer.run.rules import RULES
from mb_trainer.run.run_folder import PATH_FIELDS

NO_PATHS = {
    "train": {"step_batch_size_schedule", "early_stop_metric"},
    "model": {
        "cp_comm_type",
        "pipeline_model_parallel_layout",
        "tp_comm_overlap_cfg",
        "cuda_graph_modules",
        "recompute_modules",
        "moe_router_load_balancing_type",
        "transformer",
        "hybrid_layer_pattern",
        "module_layouts",
    },
    "optimizer": {
        "fp8_recipe",
        "params_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "optimizer",
        "muon_scale_mode",
        "muon_fp32_matmul_prec",
        "muon_coefficient_type",
        "muon_tp_mode",
        "muon_scalar_optimizer",
        "adaptive_muon_moment2_method",
    },
    "ddp": {
        "param_name_patterns_for_fp32_local_accumulation",
        "data_parallel_sharding_strategy",
        "outer_dp_sharding_strategy",
        "megatron_fsdp_main_params_dtype",
        "megatron_fsdp_main_grads_dtype",
        "megatron_fsdp_grad_comm_dtype",
    },
    "validation": {"validation_set_names"},
    "dataset": {
        "json_key",
        "split",
        "sequences_per_dataset",  # its keys are prefixes as in data_path, which is a path
        "fim_extra_tokens",
        "fim_split_sample",
        "fim_no_prefix",
        "dataset_kwargs",
        *("hf_dataset", "hf_data_files"),  # names on the hub, URLs or paths, which load_dataset distinguishes
        *("hf_subset", "hf_split", "text_key"),
    },
    "logger": {
        "runtime_time_unit",
        "memory_keys",
        "modules_to_filter",
        "wandb_project",
        "wandb_exp_name",
        "wandb_entity",
        "mlflow_experiment",
        "mlflow_run_name",
        "mlflow_tracking_uri",  # a URL by meaning
        "mlflow_tags",
        "mlflow_description",
        "comet_project",
        "comet_experiment_name",
        "comet_workspace",
        "comet_api_key",
        "comet_tags",
    },
    "tokenizer": {
        "tokenizer_type",
        "special_tokens",
        "tiktoken_pattern",
        "chat_template",
        "hf_tokenizer_kwargs",
        "sp_tokenizer_kwargs",
        "tokenizer_prompt_format",
        "image_tag_type",
    },
    "checkpoint": {
        "best_metric",
        "async_strategy",
        "async_write_results_mp_mode",
        "custom_manager_class",
        "storage",  # a URL, or a path that rule CK53 checks
        "storage_options",
    },
    "dist": {"high_priority_stream_groups"},
    "nvrx_straggler": {"logger_name"},
    "straggler": {"straggler_ctrlr_host"},
    "peft": {"exclude_modules", "target_modules"},
    "comm_overlap": {"tp_comm_bootstrap_backend"},
    "mixed_precision": {
        "params_dtype",
        "pipeline_dtype",
        "autocast_dtype",
        "fp8",
        "fp8_recipe",
        "fp8_amax_compute_algo",
        "fp4",
        "fp4_recipe",
    },
}
"""Fields that hold text other than paths, by section."""

REFUSED_WHOLLY = {"checkpoint.hf_source_path", "checkpoint.ckpt_convert_save"}
"""Paths of which a rule rejects every value but none."""

TYPES = get_type_hints(ConfigContainer)


def holds_text(hint: object) -> bool:
    """Return whether a value of this type may be, or contain, arbitrary text."""
    if get_origin(hint) is Literal:
        return False
    return hint is str or any(holds_text(part) for part in get_args(hint))


def text_fields() -> Iterator[str]:
    """Yield the path of each field of each class of each section that holds text."""
    for section in fields(ConfigContainer):
        for cls in get_args(TYPES[section.name]) or [TYPES[section.name]]:
            if is_dataclass(cls):
                hints = get_type_hints(cls)
                yield from (
                    f"{section.name}.{item.name}" for item in fields(cls) if holds_text(hints[item.name])
                )


def test_each_field_that_holds_text_is_a_path_or_known_to_be_none():
    known = {*PATH_FIELDS, *REFUSED_WHOLLY}
    known |= {f"{section}.{name}" for section, names in NO_PATHS.items() for name in names}
    assert sorted({*text_fields()} - known) == []


def section_with(path: str, value: object) -> dict[str, object]:
    """Return sections that have one field."""
    name, _, leaf = path.partition(".")
    return {name: {leaf: value}}


SHAPES = {
    "dataset.blend": lambda path: ([path], None),
    "dataset.blend_per_split": lambda path: [([path], None), None, None],
    "dataset.sources": lambda path: ["/data", path],
    "tensor_inspect.feature_dirs": lambda path: [path],
}


READ_BY_MEGATRON = ("msc://bucket/x", "s3://bucket/x")
TOKENS = ("dataset.data_path", "dataset.blend", "dataset.blend_per_split")


@pytest.mark.parametrize("field", PATH_FIELDS)
def test_a_url_is_rejected_in_each_path(field):
    rules = [rule for rule in RULES if rule.fields == (field,) and rule.id.startswith("PA")]
    shape = SHAPES.get(field, lambda path: path)
    accepted = READ_BY_MEGATRON if field in TOKENS else ()
    for path in accepted:
        assert check(section_with(field, shape(path)), rules) == []
    others = {*READ_BY_MEGATRON, "gs://bucket/x", "file:///x", "~no-such-user-here/x"} - {*accepted}
    for bad in sorted(others):
        found = check(section_with(field, shape(bad)), rules)
        assert [problem.fields for problem in found] == [(field,)], bad
    for good in ("/data/x", "data/x", "a:b", "Ordner/größe 名", "a//b"):
        assert check(section_with(field, shape(good)), rules) == []
