"""Tests of the command line with plain YAML."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rich", reason="needs mb-config[cli]")
pytest.importorskip("typer", reason="needs mb-config[cli]")

from typer.testing import CliRunner

from mb_config import RULES, Rule
from mb_config.cli.app import app
from mb_config.cli.check import print_check
from mb_config.cli.examination import examine
from mb_config.overrides.request import read_plain_request
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import PreflightChecks

VALID = """\
train: {train_iters: 100, global_batch_size: 8, micro_batch_size: 2}
model: {_target_: megatron.bridge.Model, num_layers: 4, num_attention_heads: 8}
optimizer: {lr: 1e-3}
scheduler: {lr_warmup_iters: 10}
logger: {comet_api_key: abc}
"""


def mb_config(*arguments, program=app):
    """Return exit code, stdout and stderr of the program."""
    result = CliRunner().invoke(program, [str(argument) for argument in arguments], prog_name="mb-config")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command on a valid file."""
    file = tmp_path / "run.yaml"
    file.write_text(VALID)

    def call(command, *arguments):
        return mb_config(command, *([] if command in ("explain", "rules") else [file]), *arguments)

    return call


def errors_in(out):
    """Return the ids of the listed errors."""
    return [line.split()[1] for line in out.splitlines() if line.startswith("  error ")]


def test_a_length_in_epochs_is_not_known_without_the_data(run):
    code, _, err = run("check", "train.num_epochs=2", "train.train_iters=null", "--world-size", "2")
    assert code == 0
    assert "train.num_epochs: the number of steps is not known, because the samples are counted" in err


def test_a_valid_file(run):
    code, out, err = run("check", "--world-size", "2")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        f"run, 2 processes: 0 errors, 0 warnings of {len(RULES)} rules",
        "not checked, because the rules are in the package: model (mb-models), logger (mb-metrics)",
        "not checked, because absent from the file: dataset, tokenizer, checkpoint",
    ]


def test_problems_are_printed_and_the_code_is_one(run):
    code, out, _ = run("check", "train.global_batch_size=7", "--world-size", "2", "model.num_layers=3")
    assert (code, errors_in(out)) == (1, ["V242"])
    assert "      train.global_batch_size from command line" in out.splitlines()


@pytest.mark.parametrize("world", [(), ("--world-size", "2")])
@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=false"), "V143"),
        (("train.eval_iters=5", "validation.eval_iters=7"), "V139d"),
        (("mixed_precision=bf16_mixed", "optimizer.bf16=false"), "V017"),
    ],
    ids=["wrapper", "evaluation", "precision"],
)
def test_settings_that_resolving_rejects_are_errors(run, words, rule, world):
    code, out, err = run("check", *words, *world)
    assert (code, errors_in(out)) == (1, [rule])
    assert ": 1 error, 0 warnings of " in err
    assert run("show", *words, *world)[0] == 1


def test_sections_that_are_not_in_the_file_conflict_with_nothing(tmp_path):
    file = tmp_path / "part.yaml"
    file.write_text("ddp: {use_distributed_optimizer: true}\noptimizer: {use_distributed_optimizer: false}\n")
    code, out, _ = mb_config("check", file)
    assert (code, errors_in(out)) == (1, ["V143"])
    file.write_text("ddp: {use_distributed_optimizer: true}\n")
    assert mb_config("check", file)[0] == 0


def test_a_different_target_machine(run):
    code, out, _ = run("check", "mixed_precision=bf16_with_nvfp4_mixed", "--gpu", "h100", "--te", "2.6")
    assert (code, errors_in(out)) == (1, ["H02", "V016"])


@pytest.mark.parametrize(("name", "nearest"), [("h10", "h100"), ("NVIDIA H1000", "h100"), ("gb20", "gb200")])
def test_an_unknown_gpu_is_reported_once_with_the_option_and_the_nearest_names(run, name, nearest):
    code, _, err = run("check", "--gpu", name)
    message = " ".join(err.replace("│", " ").split())
    assert (code, message.count("--gpu"), message.count(repr(name))) == (2, 1, 1)
    assert f"{name!r} is not a known GPU" in message
    assert nearest in message


def test_a_mig_slice_is_not_the_gpu(run):
    code, _, err = run("check", "--gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert (code, "is not a known GPU" in " ".join(err.replace("│", " ").split())) == (2, True)


def test_an_invalid_version_cannot_be_read(run):
    code, _, err = run("check", "--te", "abc")
    assert (code, "'abc' is not a version" in err) == (2, True)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("model: {_target_: os.system, num_layers: 4}", "model._target_"),
        ("dataset: {_target_: mbmodels.X}", "dataset._target_"),
        ("dataset: {parts: [{_target_: [os]}]}", "dataset.parts[0]._target_"),
    ],
)
def test_a_class_that_is_not_allowed_cannot_be_read(tmp_path, section, path):
    file = tmp_path / "run.yaml"
    file.write_text(f"train: {{train_iters: 1}}\n{section}\n")
    code, _, err = mb_config("check", file)
    assert (code, f"{file}:2: {path}: " in err) == (2, True)


def test_an_override_with_a_class_that_is_not_allowed_is_rejected(run):
    code, _, err = run("check", "++model._target_=os.system")
    assert (code, "command line: model._target_: 'os.system' is not allowed" in err) == (2, True)


@pytest.mark.parametrize("name", ["mb_models.config.GPTModelConfig", "GPTModelConfig"])
def test_classes_of_this_repository_and_bare_names_are_accepted(tmp_path, name):
    file = tmp_path / "run.yaml"
    file.write_text(VALID.replace("megatron.bridge.Model", name))
    assert mb_config("check", file)[0] == 0


def test_the_world_size_is_optional(run):
    assert "pass --world-size" in run("check")[2]


def test_a_warning_is_not_a_failure(run):
    code, out, _ = run("check", "scheduler.lr_warmup_iters=100")
    assert (code, out.splitlines()[1].split()[:2]) == (0, ["warning", "V205"])


def test_json(run):
    code, out, _ = run("check", "--json", "rng.seed=0")
    report = json.loads(out)
    assert (code, [problem["id"] for problem in report["problems"]]) == (1, ["V240"])
    assert report["problems"][0]["origin"] == {"rng.seed": "command line"}
    assert (report["changes"], report["unresolved"]) == ([], "the number of processes is not known")


def changes_in(out):
    return {change["field"]: (change["from"], change["to"]) for change in json.loads(out)["changes"]}


def test_changes_of_resolving(run):
    changes = changes_in(run("check", "--json", "--world-size", "2", "+mixed_precision=bf16_mixed")[1])
    assert changes["model.bf16"] == (False, True)
    assert changes["validation.eval_global_batch_size"] == (None, 8)


def test_a_file_without_a_training_is_checked_as_it_is(tmp_path):
    (tmp_path / "part.yaml").write_text("model: {num_layers: 4}\n")
    code, _, err = mb_config("check", tmp_path / "part.yaml", "--world-size", "2")
    assert (code, "checked as written, not as resolved" in err) == (0, True)


def test_model_keys_that_megatron_does_not_have(run):
    err = run("check", "+model.num_moe_expert=8")[2]
    assert "unknown to Megatron Core: model.num_moe_expert (did you mean num_moe_experts?)" in err
    err = run("check", "+model.num_layerz=3")[2]  # also if the intended key is set
    assert "unknown to Megatron Core: model.num_layerz (did you mean num_layers?)" in err


def test_show_resolved(run):
    lines = [" ".join(line.split()) for line in run("show", "--origin", "--world-size", "2")[1].splitlines()]
    assert "# scheduler.lr_decay_steps: 800 # resolve: V202" in lines


def test_show_states_that_a_configuration_is_not_resolved(run):
    note = "printed as written, not as resolved: the number of processes is not known. Pass --world-size\n"
    assert run("show")[2] == note
    assert run("show", "--world-size", "2")[2] == ""


def test_show_values_that_differ_from_the_defaults(run):
    code, out, _ = run("show", "--diff", "rng.seed=1234")
    assert (code, yaml.safe_load(out)["train"]) == (
        0,
        {"train_iters": 100, "global_batch_size": 8, "micro_batch_size": 2},
    )
    assert "rng" not in yaml.safe_load(out)
    resolved = yaml.safe_load(run("show", "--diff", "--world-size", "2")[1])
    assert resolved["validation"]["eval_global_batch_size"] == 8


def test_what_differs_loads_back(run, tmp_path):
    without_secrets = "~logger.comet_api_key"
    (tmp_path / "diff.yaml").write_text(run("show", "--diff", without_secrets)[1])
    assert mb_config("show", tmp_path / "diff.yaml")[1] == run("show", without_secrets)[1]


def test_show_one_section(run):
    code, out, _ = run("show", "--section", "scheduler", "--diff", "--origin", "--world-size", "2")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (code, lines[0], lines[1].startswith("lr_warmup_iters: 10 # ")) == (0, "scheduler:", True)
    assert "# scheduler.lr_decay_steps: 800 # resolve: V202" in lines
    assert [line for line in out.splitlines() if line.startswith("# ") and ".lr_" not in line] == [
        line for line in out.splitlines() if line.startswith("# scheduler.") and ".lr_" not in line
    ]
    out = run("show", "--section", "optimizer", "--non-default")[1]
    assert [line for line in out.splitlines() if line.endswith(":")] == ["optimizer:"]


def test_two_comparisons_at_once_are_wrong_usage(run):
    assert run("show", "--diff", "--non-default")[0] == 2


def test_the_version():
    assert mb_config("--version") == (0, f"mb-config {version('mb-config')}\n", "")


def test_settings_that_are_rejected_are_named_where_resolving_stops(run):
    words = ("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=false")
    err = run("check", *words, "--world-size", "2")[2]
    assert "checked as written, not as resolved: V143 rejects the settings" in err.splitlines()


def test_more_processes_on_a_machine_than_in_the_run_are_wrong_usage(run):
    for command in ("check", "show"):
        assert run(command, "--nproc", "4", "--world-size", "2")[0] == 2
    assert run("check", "--nproc", "2", "--world-size", "4")[0] == 0


def test_show_differences_from_megatron(run):
    code, out, _ = run("show", "--non-default")
    assert code == 0
    assert "  num_layers: 4 (Mcore default: 0)" in out.splitlines()
    assert "abc" not in out


def test_the_environment_is_not_printed(run, monkeypatch):
    monkeypatch.setenv("MY_SECRET_TOKEN", "in-clear")
    monkeypatch.setenv("NCCL_ALGO", "Tree,Ring")
    out = run("check", "--json", "+model.deterministic_mode=true", "+model.num_moe_experts=2")[1]
    values = {problem["id"]: problem["values"] for problem in json.loads(out)["problems"]}
    assert values["V141"]["facts.env"] == {"NCCL_ALGO": "Tree,Ring"}
    assert "MY_SECRET_TOKEN" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "train.lr=1"), "train.lr: no such field; did you mean optimizer.lr?"),
        (("check", "model.num_layers=x"), "command line: model.num_layers: expected int, not 'x'"),
        (("check", "+model.hidden_dropout=high"), "model.hidden_dropout: expected float, not 'high'"),
        (("check", "modle.num_layers=x"), "modle: no such field; did you mean model?"),
        (("explain", "V24"), "V24: is not a rule. Nearest: V24"),
        (
            ("explain", "whatever"),
            "whatever: is not a rule. Rules look like V242. `mb-config rules` lists all.",
        ),
        (("rules", "--package", "mb-data"), "mb-data: has no rules. Packages with rules: mb-config."),
        (("show", "train.lr=1"), "train.lr: no such field"),
        (("show", "--section", "trian"), "trian: is not a section. Nearest: train."),
        (("show", "--section", "xyz"), "xyz: is not a section. The sections are "),
    ],
)
def test_unreadable_input_has_exit_code_two(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_folder_is_not_a_file(tmp_path):
    message = (
        f"error: {tmp_path}: cannot be read (Is a directory). Name a YAML file that this user can read.\n"
    )
    assert mb_config("check", tmp_path) == (2, "", message)


def test_a_missing_file():
    assert mb_config("check", "nowhere.yaml") == (2, "", "error: nowhere.yaml: no such file\n")


def test_a_name_without_a_file_cannot_be_read():
    assert mb_config("check", "train.train_iters=1") == (
        2,
        "",
        "error: no file is given. Name one before the overrides.\n",
    )


@pytest.mark.parametrize("arguments", [["check", "a.yaml", "--nonsense"], ["explain", "V242", "more"], []])
def test_wrong_usage_has_exit_code_two(arguments):
    assert mb_config(*arguments)[0] == 2


def test_explain(run):
    code, out, _ = run("explain", "v157")
    assert (code, out.splitlines()[0]) == (0, "V157 (error)")


def test_files_are_laid_over_the_file(run, tmp_path):
    (tmp_path / "more.yaml").write_text(
        "train: {micro_batch_size: 3}\nmodel: {_target_: mb_models.config.X, x: 1}\n"
    )
    code, out, _ = run("check", "--config", tmp_path / "more.yaml", "--world-size", "1", "--json")
    report = json.loads(out)
    assert (code, [problem["id"] for problem in report["problems"]]) == (1, ["V242"])
    assert report["problems"][0]["origin"]["train.micro_batch_size"] == f"{tmp_path / 'more.yaml'}:1"
    assert report["unchecked"] == {"model": "mb-models", "logger": "mb-metrics"}


def test_the_catalogue_of_rules(run):
    code, out, err = run("rules", "--field", "rng.seed")
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["V240", "error", "rng.seed:"])
    assert err == f"{len(out.splitlines())} rule; mb-config explain ID shows one with examples\n"
    every = json.loads(run("rules", "--json")[1])
    assert [rule["id"] for rule in every] == [rule.id for rule in RULES]
    assert set(every[0]) == {"id", "package", "severity", "fields", "why", "fix"}
    assert json.loads(run("rules", "v242", "--package", "mb-config", "--json")[1])[0]["id"] == "V242"


@pytest.mark.parametrize(("options", "out"), [((), ""), (("--json",), "[]\n")])
def test_a_search_without_a_match_is_exit_code_one(run, options, out):
    message = "no rule matches; `mb-config rules` lists all\n"
    assert run("rules", "no such text", *options) == (1, out, message)


def test_a_trainer_prints_its_remarks_and_its_name(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("model: {depth: 3}\n")
    rule = Rule(
        id="X1",
        fields=("model.depth",),
        test=lambda depth: f"is {depth}",
        why="w",
        fix="F.",
        fails={},
        passes={},
    )
    target = TargetMachine(world_size=1)
    found = examine(
        read_plain_request([str(file)]), PreflightChecks(rules=(rule,)), facts={"env": {}}, target=target
    )
    assert print_check(found, program="trainer", as_json=False, notes=["one GPU"]) == 1
    out, err = capsys.readouterr()
    assert errors_in(out) == ["X1"]
    assert err.splitlines()[-2:] == ["one GPU", "trainer explain X1 shows a rule with examples"]


def test_an_interrupt_is_exit_code_130(run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mb_config.cli.check.check", interrupt)
    assert run("check") == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", ["check", "show"])
def test_the_file_of_the_readme_is_valid(tmp_path, command):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (tmp_path / "run.yaml").write_text(readme.partition("```yaml\n")[2].partition("```")[0])
    code, _, err = mb_config(command, tmp_path / "run.yaml", "--world-size", "8", "model.num_layers=12")
    assert (code, "warning" in err.replace("0 warnings", "")) == (0, False)


def test_import_args_writes_a_file_and_lists_what_is_left(tmp_path):
    script, out = tmp_path / "train.sh", tmp_path / "new" / "run.yaml"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $L --seq-length 8 --mock-data --rl-profile\n"
    )
    code, printed, logged = mb_config("import-args", script, "--set", "L=4", "--out", out)
    assert (code, printed) == (0, "")
    assert logged.splitlines()[1:] == [
        "not converted: --rl-profile: the trainer has no reinforcement learning",
        "options of torchrun, not part of a configuration: --nproc_per_node",
        f"check it with: mb-config check {out} --world-size 8 --gpu h100 --apex",
    ]
    text = out.read_text()
    assert text.startswith(
        "# converted from the arguments of Megatron-LM in train.sh\nmodel:\n  _target_: GPTModelConfig\n"
    )
    assert "  masked_softmax_fusion: true  # default of Megatron-LM\n" in text
    assert yaml.safe_load(text)["model"]["num_layers"] == 4


@pytest.mark.parametrize("flags", [["--seq-length", "8", "--mock-data"], ["--seq-length 8 --mock-data"]])
def test_import_args_takes_flags(flags):
    code, printed, _ = mb_config("import-args", *flags)
    assert (code, yaml.safe_load(printed)["dataset"]["_target_"]) == (0, "MockGPTDatasetConfig")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["no-such.sh"],
            "error: no-such.sh: no such file. Pass a script, or the arguments of pretrain_gpt.py.\n",
        ),
        (["--seq-length 8", "--set", "x"], "error: --set x: is not NAME=VALUE.\n"),
    ],
)
def test_import_args_rejects(arguments, message):
    assert mb_config("import-args", *arguments) == (2, "", message)


def test_rules_of_an_imported_module_are_checked(tmp_path):
    (tmp_path / "team_rules.py").write_text(
        "from mb_config import Rule\n"
        "RULES = [Rule(id='TEAM01', fields=('train.train_iters',), test=lambda n: 'is odd' if n % 2 else None,\n"
        "    why='pairs are compared', fix='Set an even number.',\n"
        "    fails={'train.train_iters': 3}, passes={'train.train_iters': 4})]\n"
    )
    command = [sys.executable, "-m", "mb_config", "rules", "TEAM01", "--import", "team_rules"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "TEAM01" in done.stdout, done.stderr
    assert "pairs are compared" in done.stdout


def test_a_script_with_its_own_arguments_and_flags_of_custom_code(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "DATA=$1\ntorchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 "
        "--max-position-embeddings 16 --micro-batch-size 1 --data-path $DATA --my-schedule wsd 3 --my-switch\n"
    )
    words = ["import-args", script, "--set", "1=/data/x"]
    code, _, logged = mb_config(*words)
    assert code == 2
    assert "--my-schedule: unknown flag of Megatron-LM. --custom-flag=--my-schedule leaves it out." in logged
    code, printed, logged = mb_config(*words, "--custom-flag=--my-schedule", "--custom-flag=--my-switch")
    assert (code, yaml.safe_load(printed)["dataset"]["blend"]) == (0, [["/data/x"], None])
    assert logged.splitlines()[1:3] == ["left out: --my-schedule wsd 3", "left out: --my-switch"]
    assert mb_config("import-args", script, "/data/x", "--ignore-unknown") == (0, printed, logged)
    code, _, logged = mb_config(*words, "--custom-flag=--my-schedule", "--custom-flag=--no-such")
    assert (code, "--custom-flag --no-such: is not among the arguments" in logged) == (2, True)


def test_a_functional_test_of_megatron_lm_is_converted(tmp_path):
    file = tmp_path / "model_config.yaml"
    flags = "  --num-layers: 2\n  --seq-length: 8\n  --data-path: ${DATA}/text\n  --bf16: true\n"
    file.write_text(f"ENV_VARS:\n  NCCL_ALGO: Ring\n  N_REPEAT: 3\nMODEL_ARGS:\n{flags}")
    code, printed, logged = mb_config("import-args", file, "--set", "DATA=/d", "--lr", "1e-3")
    found = yaml.safe_load(printed)
    assert (code, found["env_vars"], found["dataset"]["blend"]) == (
        0,
        {"NCCL_ALGO": "Ring"},
        [["/d/text"], None],
    )
    assert (found["optimizer"]["lr"], found["model"]["bf16"]) == (1e-3, True)
    assert "environment variable not carried: N_REPEAT" in logged
    for text in ("a: [", "a: !!int x"):
        file.write_text(text)
        assert "is not YAML" in mb_config("import-args", file)[2]
    file.write_text("- a")
    assert "is not a test case of Megatron-LM" in mb_config("import-args", file)[2]
