"""Tests of the command line with plain YAML."""

import json

import pytest

from mb_config.cli import main

VALID = """\
train: {train_iters: 100, global_batch_size: 8, micro_batch_size: 2}
model: {_target_: megatron.bridge.Model, num_layers: 4, num_attention_heads: 8}
optimizer: {lr: 1e-3}
scheduler: {lr_warmup_iters: 10}
logger: {comet_api_key: abc}
"""


@pytest.fixture
def run(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(VALID)

    def call(command, *arguments):
        code = main([command, str(file), *arguments] if command != "explain" else [command, *arguments])
        return code, *capsys.readouterr()

    return call


def test_a_valid_file(run):
    code, out, err = run("check", "--world-size", "2")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "0 errors, 0 warnings",
        "checked by the shared rules only: model, logger (sections of other packages)",
        "not checked, because absent from the file: dataset, tokenizer, checkpoint",
    ]


def test_problems_are_printed_and_the_code_is_one(run):
    code, out, _ = run("check", "train.global_batch_size=7", "--world-size", "2", "model.num_layers=3")
    assert (code, out.split(":")[0]) == (1, "error V242")


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
    assert (code, [line.split(":")[0] for line in out.splitlines()]) == (1, [f"error {rule}"])
    assert err.startswith("1 errors, 0 warnings")


def test_sections_that_are_not_in_the_file_conflict_with_nothing(tmp_path, capsys):
    file = tmp_path / "part.yaml"
    file.write_text("ddp: {use_distributed_optimizer: true}\noptimizer: {use_distributed_optimizer: false}\n")
    assert main(["check", str(file)]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["error V143"]
    file.write_text("ddp: {use_distributed_optimizer: true}\n")
    assert main(["check", str(file)]) == 0


def test_a_different_target_machine(run):
    code, out, _ = run("check", "mixed_precision=bf16_with_nvfp4_mixed", "--gpu", "h100", "--te", "2.6")
    assert (code, [line.split(":")[0] for line in out.splitlines()]) == (1, ["error H02", "error V016"])


@pytest.mark.parametrize(("name", "nearest"), [("h10", "h100"), ("NVIDIA H1000", "h100"), ("gb20", "gb200")])
def test_an_unknown_gpu_is_reported_once_with_the_option_and_the_nearest_names(run, capsys, name, nearest):
    with pytest.raises(SystemExit, match="2"):
        run("check", "--gpu", name)
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.count("--gpu") == message.count(repr(name)) == 1
    assert message.startswith(f"mb-config check: error: argument --gpu: {name!r} is not a known GPU")
    assert nearest in message


def test_a_mig_slice_is_not_the_gpu(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("check", "--gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert "is not a known GPU" in capsys.readouterr().err


def test_an_invalid_version_cannot_be_read(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("check", "--te", "abc")
    assert "'abc' is not a version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("model: {_target_: os.system, num_layers: 4}", "model._target_"),
        ("dataset: {_target_: mbmodels.X}", "dataset._target_"),
        ("dataset: {parts: [{_target_: [os]}]}", "dataset.parts[0]._target_"),
    ],
)
def test_a_class_that_is_not_allowed_cannot_be_read(tmp_path, capsys, section, path):
    file = tmp_path / "run.yaml"
    file.write_text(f"train: {{train_iters: 1}}\n{section}\n")
    assert main(["check", str(file)]) == 2
    assert f"{file}:2: {path}: " in capsys.readouterr().err


def test_an_override_with_a_class_that_is_not_allowed_is_rejected(run):
    code, _, err = run("check", "++model._target_=os.system")
    assert (code, "command line: model._target_: 'os.system' is not allowed" in err) == (2, True)


@pytest.mark.parametrize("name", ["mb_models.config.GPTModelConfig", "GPTModelConfig"])
def test_classes_of_this_repository_and_bare_names_are_accepted(tmp_path, name):
    file = tmp_path / "run.yaml"
    file.write_text(VALID.replace("megatron.bridge.Model", name))
    assert main(["check", str(file)]) == 0


def test_the_world_size_is_optional(run):
    assert "pass --world-size" in run("check")[2]


def test_a_warning_is_not_a_failure(run):
    code, out, _ = run("check", "scheduler.lr_warmup_iters=100")
    assert (code, out.split(":")[0]) == (0, "warning V205")


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


def test_rules_are_applied_again_to_the_resolved_configuration(run):
    code, out, _ = run("check", "--world-size", "2", "validation.eval_micro_batch_size=3")
    assert (code, out.split(":")[0]) == (1, "error V119")


def test_settings_that_exclude_each_other(run):
    code, out, _ = run(
        "check", "--world-size", "2", "mixed_precision=bf16_mixed", "+model.bf16=false", "--json"
    )
    assert (code, [problem["id"] for problem in json.loads(out)["problems"]]) == (1, ["V017"])
    assert run("show", "--world-size", "2", "mixed_precision=bf16_mixed", "+model.bf16=false")[0] == 1


def test_a_file_without_a_training_is_checked_as_it_is(tmp_path, capsys):
    (tmp_path / "part.yaml").write_text("model: {num_layers: 4}\n")
    assert main(["check", str(tmp_path / "part.yaml"), "--world-size", "2"]) == 0
    assert "checked as written, not as resolved" in capsys.readouterr().err


def test_model_keys_that_megatron_does_not_have(run):
    err = run("check", "+model.num_moe_expert=8")[2]
    assert "unknown to Megatron Core: model.num_moe_expert (did you mean num_moe_experts?)" in err


def test_show_resolved(run):
    lines = [" ".join(line.split()) for line in run("show", "--origin", "--world-size", "2")[1].splitlines()]
    assert "# scheduler.lr_decay_steps: 800 # resolve: V202" in lines


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
        (("check", "model.num_layers=x"), "command line: model.num_layers: expected int or null, not 'x'"),
        (("check", "+model.hidden_dropout=high"), "model.hidden_dropout: expected float, not 'high'"),
        (("check", "modle.num_layers=x"), "modle: no such field; did you mean model?"),
        (("explain", "V24"), "unknown rule 'V24'; did you mean V24"),
        (("explain", "whatever"), "unknown rule 'whatever'"),
    ],
)
def test_unreadable_input_has_exit_code_two(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_file(capsys):
    assert main(["check", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "nowhere.yaml: no such file\n"


@pytest.mark.parametrize("arguments", [["check", "a.yaml", "--nonsense"], ["explain", "V242", "more"], []])
def test_wrong_usage_has_exit_code_two(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_show_with_origin_masks_secrets(run):
    code, out, _ = run("show", "--origin", "rng.seed=3")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "seed: 3 # command line" in lines
    assert any(line.startswith("train_iters: 100 # ") and line.endswith("run.yaml:1") for line in lines)
    assert "abc" not in out


def test_explain(run):
    code, out, _ = run("explain", "v137")
    assert (code, out.splitlines()[0]) == (0, "V137 (error)")
