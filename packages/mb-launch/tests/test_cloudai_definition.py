"""CloudAI's test definition: fields, field checks, TOML, and the resulting command line."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

import pydantic

from mb_launch.cloudai.command import (
    ALWAYS,
    BARE,
    FLAGS,
    NEVER,
    IncompleteLaunchError,
    SystemSettings,
    masked_command_line,
    shell_line,
)
from mb_launch.cloudai.constraints import SweepError
from mb_launch.cloudai.definition import (
    GitRepo,
    MegatronBridgeCmdArgs,
    MegatronBridgeTestDefinition,
    load_test_definition,
)

DEFAULTS = json.loads(Path(__file__).with_name("launcher_defaults.json").read_text())
TOKEN = "hf_secret_token"
REPO = {"url": "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git", "commit": "r0.3.0"}
ARGS = {"model_family_name": "llama", "model_recipe_name": "llama3_8b", "hf_token": TOKEN}


def definition(*, repos=(REPO,), **args):
    return MegatronBridgeTestDefinition(name="bridge", cmd_args={**ARGS, **args}, git_repos=list(repos))


def arguments(system=None, **args):
    return definition(**args).launcher_arguments(system or SystemSettings(gpus_per_node=8))


def test_all_fields_are_there_with_their_defaults(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert MegatronBridgeCmdArgs().model_dump() == {**DEFAULTS, "hf_token": TOKEN}
    assert len(DEFAULTS) == 75


def test_every_field_has_a_flag_or_is_known_to_have_none():
    assert set(FLAGS) | set(BARE) | NEVER == {*DEFAULTS, "gpus_per_node"}


@pytest.mark.parametrize("given", [{"hf_token": "  "}, {}])
def test_a_token_is_needed(monkeypatch, given):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(pydantic.ValidationError, match=r"hf_token: is blank.*Export HF_TOKEN"):
        MegatronBridgeCmdArgs(**given)


def test_the_token_of_the_environment_is_the_default_and_blanks_are_stripped(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN} ")
    assert MegatronBridgeCmdArgs(hf_token=" ").hf_token == TOKEN
    assert MegatronBridgeCmdArgs(hf_token=" mine ").hf_token == "mine"


@pytest.mark.parametrize("name", ["model_family_name", "model_recipe_name"])
def test_a_blank_name_is_rejected_and_a_missing_one_when_it_is_launched(name):
    with pytest.raises(pydantic.ValidationError, match=f"{name}: is blank"):
        MegatronBridgeCmdArgs(**{**ARGS, name: " "})
    args = {key: value for key, value in ARGS.items() if key != name}
    incomplete = MegatronBridgeTestDefinition(name="bridge", cmd_args=args, git_repos=[REPO])
    with pytest.raises(IncompleteLaunchError, match=f"cmd_args.{name}: is blank"):
        incomplete.launcher_arguments(SystemSettings())


def test_an_unknown_argument_is_rejected_with_the_nearest_name():
    with pytest.raises(
        pydantic.ValidationError, match=r"max_step \(did you mean max_steps\?\) would have no effect"
    ):
        MegatronBridgeCmdArgs(**ARGS, max_step=3)


@pytest.mark.parametrize("repos", [[], [{"url": "https://example.org/other.git", "commit": "main"}]])
def test_the_repository_is_needed(repos):
    with pytest.raises(pydantic.ValidationError, match="git_repos: Megatron-Bridge is not among"):
        definition(repos=repos)
    with pytest.raises(pydantic.ValidationError, match="git_repos: Megatron-Bridge is not among 0"):
        MegatronBridgeTestDefinition(name="bridge", cmd_args=ARGS)


def test_the_first_repository_with_the_mount_is_used():
    mounted = {"url": "https://example.org/fork.git", "commit": "main", "mount_as": "/opt/Megatron-Bridge/"}
    assert definition(repos=[mounted, REPO]).megatron_bridge_repo == GitRepo(**mounted)


def test_a_list_that_was_emptied_after_validation_is_an_error():
    emptied = definition()
    emptied.git_repos.clear()
    with pytest.raises(ValueError, match="is missing, because the list was changed after validation"):
        emptied.installables  # noqa: B018


def test_requirements_of_a_launch():
    plain, contained = definition(), definition(container_image="nvcr.io/nvidia/nemo:26.02")
    assert plain.installables == [plain.python_executable, plain.megatron_bridge_repo]
    assert contained.installables == [contained.docker_image, *plain.installables]


def test_the_verdict_and_its_reasons():
    good, bad = definition(tp=2, pp=2, vp=2), definition(tp=3, vp=2)
    assert (good.constraint_check(None), good.violated_constraints()) == (True, [])
    assert (bad.constraint_check(None, None), [each.id for each in bad.violated_constraints()]) == (
        False,
        ["C01"],
    )
    assert [each.id for each in bad.violated_constraints(additional=True)] == ["C01", "C19"]
    assert definition(vp=2).constraint_check()  # as in CloudAI, although Megatron rejects it


def test_only_arguments_of_the_user_and_a_few_others_are_passed():
    assert arguments() == [
        "-hf", TOKEN, "-ng", "8", "-gn", "8", "-m", "llama", "-mr", "llama3_8b", "--detach", "false",
        "logger.tensorboard_dir=/nemo_run/tb_logs", "logger.log_timers_to_tensorboard=true",
        "logger.log_throughput_to_tensorboard=true", "logger.log_memory_to_tensorboard=true",
    ]  # fmt: skip
    assert set(ALWAYS) - set(FLAGS) == set()


FORMS = [
    ({"tp": 2}, ["-tp", "2"]),
    ({"vp": 1}, ["-vp", "None"]),
    ({"vp": 2}, ["-vp", "2"]),
    ({"enable_vboost": True}, ["-vb", "true"]),
    ({"moe_a2a_overlap": False}, ["--moe_a2a_overlap", "false"]),
    ({"dryrun": True}, ["-d"]),
    ({"packed_sequence": True}, ["--packed_sequence"]),
    ({"dataset_paths": ["a b", "c"]}, ["--dataset_paths", "a b", "c"]),
    ({"profiling_ranks": [0, 4]}, ["--profiling_ranks", "0,4"]),
    ({"nsys_trace": "cuda,nvtx"}, ["--nsys_trace", "cuda,nvtx"]),
    ({"recompute_modules": "[core_attn, 'mlp']"}, ["--recompute_modules", "core_attn,mlp"]),
    ({"cuda_graph_scope": ["attn", "moe_router"]}, ["--cuda_graph_scope", "attn,moe_router"]),
    ({"gpus_per_node": 4}, ["-gn", "4"]),
]


@pytest.mark.parametrize(("args", "form"), FORMS)
def test_the_form_of_an_argument(args, form):
    found = arguments(**args)
    start = found.index(form[0])
    assert found[start : start + len(form)] == form


@pytest.mark.parametrize(
    "args",
    [{"log_dir": ""}, {"dataset_paths": []}, {"dryrun": False}, {"fp8_recipe": "mx"},
     {"num_distributed_optimizer_instances": 2}, {"tokenizer_type": None}],
)  # fmt: skip
def test_empty_arguments_and_those_without_a_flag_are_omitted(args):
    assert arguments(**args) == arguments()


def test_the_system_sets_account_mounts_variables_and_overrides():
    system = SystemSettings(
        account="acct", partition="batch", time_limit="00:20:00", gpus_per_node=4, mounts=("/a:/b", "/c:/d"),
        env_vars={"NCCL_DEBUG": "INFO", "A": "b c"}, overrides={"logger.log_timers_to_tensorboard": "false"},
    )  # fmt: skip
    found = arguments(system)
    assert found[:6] == ["-a", "acct", "-p", "batch", "-t", "00:20:00"]
    assert found[found.index("-cm") :][:6] == [
        "-cm", "/a:/b,/c:/d", "-cb", "export NCCL_DEBUG=INFO", "-cb", "export A='b c'",
    ]  # fmt: skip
    assert "logger.log_timers_to_tensorboard=false" in found


def test_the_test_adds_overrides_variables_and_mounts():
    test = definition()
    test.extra_cmd_args = {
        "~model.foo": "",
        "logger.log_timers_to_tensorboard": "false",
        "train.train_iters": "5",
    }
    test.extra_env_vars, test.extra_container_mounts = {"A": "1"}, ["/e:/f"]
    found = test.launcher_arguments(SystemSettings(mounts=("/a:/b",), env_vars={"A": "0"}))
    assert found[-3:] == ["logger.log_memory_to_tensorboard=true", "~model.foo", "train.train_iters=5"]
    assert "logger.log_timers_to_tensorboard=false" in found
    assert (found[found.index("-cm") + 1], found[found.index("-cb") + 1]) == ("/a:/b,/e:/f", "export A=1")
    test.extra_env_vars = {"A": ["1", "2"]}
    with pytest.raises(SweepError, match=r"extra_env_vars.A: \['1', '2'\] is a list"):
        test.launcher_arguments(SystemSettings())


def test_a_line_for_a_shell_has_the_modules_in_double_quotes():
    line = shell_line(arguments(recompute_modules=["core_attn"], dataset_root="/my data"))
    assert '--recompute_modules "core_attn"' in line
    assert "--dataset_root '/my data'" in line
    assert shell_line(["--recompute_modules", '$(a)`b`"\\']) == r'--recompute_modules "\$(a)\`b\`\"\\"'


def test_secrets_are_masked():
    system = SystemSettings(env_vars={"WANDB_API_KEY": TOKEN})
    kept = definition(
        wandb_key=TOKEN, repos=[{"url": f"https://me:{TOKEN}@example.org/Megatron-Bridge", "commit": "main"}]
    )
    printed = masked_command_line(kept.launcher_arguments(system))
    assert TOKEN not in printed
    assert "-hf '<masked>'" in printed
    assert TOKEN not in f"{kept!r} {kept}"
    with pytest.raises(pydantic.ValidationError) as error:
        definition(repos=[], wandb_key=TOKEN, tp="many")
    assert TOKEN not in str(error.value)


TOML = """
name = "bridge"
description = "Llama 3 8B on eight GPUs"
test_template_name = "MegatronBridge"
extra_container_mounts = ["/data:/data"]

[[git_repos]]
url = "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git"
commit = "r0.3.0"
mount_as = "/opt/Megatron-Bridge"

[cmd_args]
gpu_type = "h100"
container_image = "nvcr.io/nvidia/nemo:26.02"
model_family_name = "llama"
model_recipe_name = "llama3_8b"
hf_token = "hf_secret_token"
num_gpus = 8
gpus_per_node = 8
tp = [1, 2]
mb = 1
gb = 128
cuda_graph_scope = ["attn"]
use_recipes = true

[extra_env_vars]
NCCL_DEBUG = "WARN"

[extra_cmd_args]
"train.manual_gc" = "true"
"""


def test_a_toml_file_in_cloudais_format_loads(tmp_path):
    path = tmp_path / "test.toml"
    path.write_text(TOML)
    loaded = load_test_definition(path)
    assert (loaded.cmd_args.tp, loaded.cmd_args.gpu_type, loaded.extra_env_vars) == (
        [1, 2], "h100", {"NCCL_DEBUG": "WARN"},
    )  # fmt: skip
    assert loaded.cmd_args.model_fields_set >= {"use_recipes", "gb"}
    assert loaded.megatron_bridge_repo.commit == "r0.3.0"


def test_an_unknown_key_of_the_test_is_rejected(tmp_path):
    path = tmp_path / "test.toml"
    path.write_text(TOML.replace("description =", "descripton ="))
    with pytest.raises(pydantic.ValidationError, match="descripton"):
        load_test_definition(path)
