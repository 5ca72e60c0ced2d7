"""`mb tune`: measures on this machine, and writes a file that `--config` reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_trainer.cli.app import app
from mb_trainer.commands.tune import fastest_layouts
from mb_trainer.requests import examine_request

TINY = [
    *("gpt_tiny", "model.num_layers=1", "model.hidden_size=32", "model.ffn_hidden_size=64"),
    *(
        "model.num_attention_heads=2",
        "model.num_query_groups=2",
        "model.seq_length=16",
        "dataset.seq_length=16",
    ),
    *(
        "dataset.vocab_size=300",
        "dataset.num_workers=0",
        "scheduler.lr_warmup_iters=1",
        "logger.log_interval=100",
    ),
    *("train.global_batch_size=8", "train.micro_batch_size=1"),
]


@pytest.mark.slow
def test_the_fastest_settings_of_this_machine_are_a_file_that_a_run_takes(tmp_path):
    out = tmp_path / "tuned.yaml"
    words = [
        *TINY,
        f"dataset.cache_dir={tmp_path / 'data'}",
        f"dataset.sources=[{Path(__file__).parents[1]}]",
    ]
    done = CliRunner().invoke(app, ["tune", *words, "--minutes", "0.6", "--steps", "3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "(as given)" in done.stdout
    assert "train.micro_batch_size=2" in done.stdout
    kept = yaml.safe_load(out.read_text())
    assert kept.keys() <= {"train", "dataset"}  # there is no GPU, so that nothing else depends on the machine
    checked = CliRunner().invoke(app, ["check", *words, f"--config={out}"])
    assert checked.exit_code == 0, checked.stderr


def test_on_several_gpus_the_best_layouts_of_a_sweep_are_tried():
    given = CommandInput(
        arguments=["llama31_8b", "model.num_layers=4", "model.context_parallel_size=1"], files=[]
    )
    target = TargetMachine(world_size=8, gpu="h100")
    layouts = fastest_layouts(given, target=target)
    words = ["sweep", *given.arguments, "--world-size=8", "--gpu=h100", "--layouts", "--top=3", "--json"]
    swept = json.loads(CliRunner().invoke(app, words).stdout)["shown"]
    expected = [tuple(f"{k}={json.dumps(v)}" for k, v in point["values"].items()) for point in swept]
    assert layouts == expected
    assert not any("context_parallel_size" in word for words in expected for word in words)  # set by the user
    for overrides in layouts:
        examined = examine_request(replace(given, arguments=[*given.arguments, *overrides]), target=target)
        assert examined.result.errors == []


def test_a_recipe_that_does_not_exist_is_bad_input():
    done = CliRunner().invoke(app, ["tune", "no_such_recipe"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no_such_recipe: is neither a recipe nor a YAML file." in done.stderr
