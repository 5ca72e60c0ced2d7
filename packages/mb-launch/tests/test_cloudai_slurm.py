"""A test definition of CloudAI becomes the command and the Slurm job that `slurm` writes."""

import pytest

pytest.importorskip("pydantic", reason="needs mb-launch[cloudai]")

from mb_launch.cloudai.command import BARE, FLAGS, NEVER
from mb_launch.cloudai.definition import MegatronBridgeTestDefinition
from mb_launch.cloudai.slurm_run import (
    FIELDS,
    OF_JOB,
    CloudaiTestError,
    job_settings,
    read_test,
    trainer_arguments,
)

TEST = """
name = "small"
extra_container_mounts = ["/data:/data"]
[cmd_args]
gpu_type = "h100"
num_gpus = 16
gpus_per_node = 8
time_limit = "00:30:00"
container_image = "image"
model_family_name = "llama"
model_recipe_name = "llama31_8b"
hf_token = "hf_in_the_file"
compute_dtype = "fp8_cs"
tp = 2
vp = 1
gb = 128
seq_length = 4096
recompute_modules = "core_attn,mlp"
enable_vboost = false
[extra_env_vars]
NCCL_DEBUG = "WARN"
[extra_cmd_args]
"train.eval_interval" = "5"
"~model.foo" = ""
[[git_repos]]
url = "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git"
commit = "r0.3.0"
"""
COMMAND = [
    "pretrain", "llama31_8b", "mixed_precision=bf16_with_fp8_current_scaling_mixed",
    "model.tensor_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=null",
    "model.seq_length=4096", "dataset.seq_length=4096", "train.global_batch_size=128",
    "model.recompute_granularity=selective", "model.recompute_modules=[core_attn,mlp]",
    "train.eval_interval=5", "~model.foo",
]  # fmt: skip


def definition(**arguments):
    given = {"model_family_name": "llama", "model_recipe_name": "small", "hf_token": "hf_x", **arguments}
    repo = {"url": "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git", "commit": "r0.3.0"}
    return MegatronBridgeTestDefinition(name="small", cmd_args=given, git_repos=[repo])


def test_a_test_is_the_command(tmp_path):
    (tmp_path / "test.toml").write_text(TEST)
    assert trainer_arguments(read_test(tmp_path / "test.toml")) == COMMAND


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"model_recipe_name": "x", "task": "dpo"},
            "cmd_args.task: 'dpo' is unknown. Known: pretrain, sft, lora.",
        ),
        ({"compute_dtype": "int4"}, "cmd_args.compute_dtype: 'int4' is unknown"),
        ({"use_tokendrop": True}, "cmd_args.use_tokendrop: has no counterpart in the trainer"),
        ({"domain": "vlm"}, "cmd_args.domain: has no counterpart"),
        ({"tp": [1, 2]}, "cmd_args.tp: [1, 2] is a list"),
    ],
)
def test_what_cannot_be_run_is_named(arguments, message):
    with pytest.raises(CloudaiTestError) as raised:
        trainer_arguments(definition(**arguments))
    assert message in str(raised.value)


def test_a_blank_recipe_a_bad_file_and_uneven_nodes_are_named(tmp_path):
    blank = definition()
    blank.cmd_args.model_recipe_name = ""
    with pytest.raises(CloudaiTestError, match="model_recipe_name: is blank"):
        trainer_arguments(blank)
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(CloudaiTestError, match=r"bad\.toml: is not a test definition of CloudAI"):
        read_test(tmp_path / "bad.toml")
    with pytest.raises(CloudaiTestError, match=r"num_gpus: 12 is not a multiple of gpus_per_node \(8\)"):
        job_settings(definition(num_gpus=12))
    several = definition()
    several.extra_env_vars = {"A": ["1", "2"]}
    with pytest.raises(CloudaiTestError, match=r"A: .* is a list"):
        job_settings(several)


def test_finetuning_profiling_and_recomputation():
    settings = {
        "task": "lora",
        "profiling_ranks": [0, 3],
        "recompute_num_layers": 2,
    }
    assert trainer_arguments(definition(**settings, num_gpus=4))[2:] == [
        "peft=lora", "mixed_precision=bf16_mixed", "model.recompute_granularity=full", "model.recompute_method=block",
        "model.recompute_num_layers=2",
        "profiling.profile_ranks=[0,3]",
    ]  # fmt: skip
    assert job_settings(definition(num_gpus=4)) == {
        "nodes": 1, "gpus_per_node": 4, "gpu": "gb200", "job_name": "small", "env": ["HF_TOKEN"],
    }  # fmt: skip


def test_every_argument_is_taken_or_known_to_have_no_counterpart():
    without = {
        "activation_offload_layers",
        "config_variant", "data", "dataset_name", "dataset_paths", "domain", "dryrun", "enable_vboost",
        "first_k_dense_replace", "fp8_recipe", "head_only", "list_config_variants", "log_dir", "max_retries",
        "nemo_home", "nsys_extra_args", "nsys_trace", "packed_sequence", "profiling_gpu_metrics", "use_recipes",
        "use_tokendrop",
    }  # fmt: skip
    assert {*FLAGS, *BARE, *NEVER} == {*FIELDS, *OF_JOB, *without} - {"time_limit"}


def test_text_is_quoted_for_overrides_where_hydra_would_read_something_else():
    texts = {"/data/a b,c=d": "'/data/a b,c=d'", "/it's": r"'/it\'s'", r"/x\y": r"'/x\y'", "2026": "'2026'"}
    for folder, written in texts.items():
        assert f"checkpoint.save={written}" in trainer_arguments(definition(save_dir=folder))
