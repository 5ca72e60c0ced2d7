"""`mb replay` makes a step of a run again, bit for bit, and measures its tensors."""

import json
import math

import pytest
from runs import train_here
from typer.testing import CliRunner

from mb_trainer.cli.app import app


def mb(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def test_a_step_after_a_resume_is_made_again_with_the_norms_of_its_tensors(overrides, tmp_path):
    words = [*overrides, "train.train_iters=6", "checkpoint.save_interval=3"]
    train_here([*words, "train.exit_interval=3"], tmp_path / "run")
    train_here([*words, "train.exit_interval=null"], tmp_path / "run", resume_with_changes=True)
    before = sorted(path for path in (tmp_path / "run").rglob("*"))
    made = mb("replay", tmp_path / "run", "--step", 5, "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert (found["equal"], found["from_step"], [row["step"] for row in found["tensor_norms"]]) == (
        True,
        3,
        [4, 5],
    )
    assert {"lm loss", "grad-norm", "learning-rate"} <= set(found["compared"])
    assert sorted(path for path in (tmp_path / "run").rglob("*")) == before
    row = found["tensor_norms"][1]
    recorded = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (step,) = [each for each in recorded if each["step"] == 5 and "grad-norm" in each]
    together = math.sqrt(sum(norm**2 for norm in row["gradients"].values()))
    assert together == pytest.approx(step["grad-norm"], rel=1e-4)
    assert row["weights"].keys() == row["gradients"].keys()
    assert any(name.endswith("layers.0.mlp.linear_fc2") for name in row["outputs"])


def test_a_run_with_code_of_the_user_is_rejected(tmp_path):
    start = {"event": "start", "step": 0, "time": 0.0, "code": {"forward_step": ["mine.step"]}}
    (tmp_path / "events.jsonl").write_text(json.dumps(start) + "\n")
    made = mb("replay", tmp_path, "--step", 5)
    assert (made.exit_code, "mine.step" in made.stderr) == (1, True)
