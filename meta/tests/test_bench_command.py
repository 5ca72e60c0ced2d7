"""`mb bench`: the command of a measured run."""

import sys

from typer.testing import CliRunner

from mb_metrics.bench.request import BenchRequest
from mb_trainer.cli.app import app
from mb_trainer.commands.bench import bench_command


def test_a_run_is_as_long_as_the_measurement_and_saves_nothing(tmp_path):
    request = BenchRequest(result=tmp_path / "bench.json", steps=20, warmup=5, profiled=2)
    command = bench_command(["gpt_tiny", "--nproc", "2", "perf=auto"], tmp_path, request)
    start = [sys.executable, "-m", "mb_trainer", "pretrain", f"--out={tmp_path}"]
    assert command[:9] == [*start, "gpt_tiny", "--nproc", "2", "perf=auto"]
    assert {"train.train_iters=27", "checkpoint.save=null", "validation.eval_interval=null"} < {*command[9:]}


def test_a_recipe_that_does_not_exist_is_bad_input():
    done = CliRunner().invoke(app, ["bench", "no_such_recipe", "--steps", "2"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: no_such_recipe: is neither a recipe nor a YAML file." in done.stderr
