"""`mb tune`: measures on this machine, and writes a file that `--config` reads."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mb_trainer.cli.app import app

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


def test_a_recipe_that_does_not_exist_is_bad_input():
    done = CliRunner().invoke(app, ["tune", "no_such_recipe"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no_such_recipe: is neither a recipe nor a YAML file." in done.stderr
