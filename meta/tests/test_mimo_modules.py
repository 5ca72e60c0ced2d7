"""Encoder and language model with per-module parallelism: checks before the model is built."""

import json

import pytest
from typer.testing import CliRunner

from mb_config.preflight.module_layouts import one_replica
from mb_models.parameters import mimo_parameter_count
from mb_trainer.cli.app import app
from mb_trainer.errors import RunFolderError
from mb_trainer.recipes import gpt_tiny, mimo_tiny
from mb_trainer.requests import read_request
from mb_trainer.run.settle import RunOptions, settle_job

FIRST = "model.language_rank_offset"


def mb(*words):
    return CliRunner().invoke(app, words)


def answer(*words):
    return json.loads(mb(*words, "--json").stdout)


@pytest.mark.parametrize(
    ("words", "world_size", "rules"),
    [
        ([f"{FIRST}=1"], 2, []),
        (["model.vision_tensor_model_parallel_size=2"], 2, []),
        ([f"{FIRST}=1", "model.tensor_model_parallel_size=2"], 3, ["M16"]),
        ([f"{FIRST}=1", "model.vision_tensor_model_parallel_size=1", "model.tensor_model_parallel_size=2"], 3, []),
        ([f"{FIRST}=2"], 2, ["M16"]),
        ([f"{FIRST}=1", "model.calculate_per_token_loss=false", "model.bf16=true"], 2, ["M17", "M18d"]),
        ([f"{FIRST}=1"], 4, ["M19"]),
        ([f"{FIRST}=1", "validation.eval_micro_batch_size=1"], 3, ["M20"]),
        ([f"{FIRST}=1", "ddp.use_distributed_optimizer=true"], 2, ["M21c"]),
        ([f"{FIRST}=1", "rerun_state_machine.rerun_mode=validate_results"], 2, ["M24"]),
        ([f"{FIRST}=1", "mixed_precision=bf16_mixed"], 2, ["V224"]),
    ],
)  # fmt: skip
def test_what_modules_can_and_cannot_do_is_known_before_launch(words, world_size, rules):
    found = answer("check", "mimo_tiny", *words, "--world-size", str(world_size))
    assert sorted(problem["id"] for problem in found["problems"]) == rules
    changes = {change["field"]: change["to"] for change in found["changes"]}
    assert changes.get("data_parallel_size") == (None if rules == ["V224"] else 1)


def test_to_other_rules_modules_with_layouts_of_their_own_are_one_replica():
    model = read_request(["mimo_tiny", f"{FIRST}=1"]).config.model
    assert one_replica(model, {"world_size": 3}) == {"world_size": 1, "all_processes": 3}
    assert one_replica(gpt_tiny().model, {"world_size": 3}) == {"world_size": 3}


def test_the_layout_is_shown_and_planned():
    words = ["mimo_tiny", f"{FIRST}=1", "model.vision_tensor_model_parallel_size=1"]
    assert f"{FIRST.removeprefix('model.')}: 1\n" in mb("config", "show", *words, "--world-size", "2").stdout
    found, whole = answer("plan", *words), answer("plan", "mimo_tiny")
    assert found["parameters"]["total"] == mimo_parameter_count(mimo_tiny().model, vocab_size=384)
    assert sum(found["parameters"]["per_stage"]) == found["parameters"]["total"]
    assert whole["parameters"]["per_stage"] == [found["parameters"]["total"]]
    assert (found["num_microbatches"], found["bubble_fraction"], found["data_parallel_size"]) == (2, None, 1)
    assert found["flops_per_token"] == whole["flops_per_token"]
    assert "encoder tp 1 dp 1; language model tp 1 dp 1" in mb("plan", *words).stdout


@pytest.mark.parametrize(("load_optim", "refused"), [(True, True), (False, False)])
def test_a_run_of_one_model_does_not_resume_as_modules_with_its_optimizer(tmp_path, load_optim, refused):
    def settled(resume_with_changes, offset):
        config = mimo_tiny()
        config.model.language_rank_offset = offset
        config.checkpoint.load_optim = load_optim
        environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        options = RunOptions(out=tmp_path, resume_with_changes=resume_with_changes, environment=environment)
        return settle_job(config, options)

    settled(False, 0).config.to_yaml(tmp_path / "run_config.yaml")
    (tmp_path / "checkpoints" / "iter_0000003").mkdir(parents=True)
    if refused:
        with pytest.raises(RunFolderError, match=r"holds the optimizer of one model, .*load_optim=false"):
            settled(True, 1)
    else:
        assert settled(True, 1).status.state == "resumable"
    assert settled(True, 0).status.state == "resumable"
