"""The example project: installed, its recipe is found by name; not installed, by --import or by its file."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from runs import mb, metrics

PROJECT = Path(__file__).parents[2] / "meta" / "examples" / "own_project"
SHORT = ("train.train_iters=4", "scheduler.lr_warmup_iters=1", "validation.eval_iters=0")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the environment of a process for which the project is installed."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        ["uv", "pip", "install", "-q", "--no-deps", "--target", str(target), str(PROJECT)], check=True
    )
    return {"PYTHONPATH": str(target)}


@pytest.fixture
def source():
    """Return the environment of a process that finds the project's source."""
    return {"PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])}


def test_an_installed_project_adds_its_recipe_and_sections(installed, tmp_path):
    assert "sorting_tiny" in mb("recipes", environment=installed).stdout
    run = tmp_path / "run"
    ended = mb("pretrain", "sorting_tiny", *SHORT, f"--out={run}", environment=installed)
    assert ended.returncode == 0, ended.stderr
    assert "own_project: 3968 tokens" in ended.stdout
    assert [row["sorting loss"] > 0 for row in metrics(run) if "sorting loss" in row] == [True] * 4
    code = json.loads((run / "events.jsonl").read_text().splitlines()[0])["code"]
    assert code == {"forward_step": ["own_project.recipes.sorting_step"]}
    check = mb("check", str(run / "run_config.yaml"), environment=installed)
    assert check.returncode == 0, check.stderr


def test_without_an_installation_the_module_is_imported_by_name(source, tmp_path):
    words = ("check", "sorting_tiny", "dataset.digits=300", "--json")
    unknown = mb(*words, environment=source)
    assert (unknown.returncode, "sorting_tiny: is neither a recipe" in unknown.stderr) == (2, True)
    found = mb(*words, "--import", "own_project.recipes", environment=source)
    assert [problem["id"] for problem in json.loads(found.stdout)["problems"]] == ["OWN1"]
    assert (
        "OWN1" in mb("rules", "digit is one byte", "--import=own_project.recipes", environment=source).stdout
    )


def test_two_processes_import_it_too_and_its_model_is_tensor_parallel(source, tmp_path):
    words = ("sorting_tiny", *SHORT, "model.tensor_model_parallel_size=2", "--import=own_project.recipes")
    ended = mb("pretrain", *words, "--nproc=2", f"--out={tmp_path}", environment=source)
    assert ended.returncode == 0, ended.stderr
    sample = ("sample", str(tmp_path), "--prompt=314", "--tokens=2", "--temperature=0")
    assert mb(*sample, "--import=own_project.model", environment=source).returncode == 2
    both = ("--import=own_project.model", "--import=own_project.data")
    assert mb(*sample, *both, environment=source).stdout.startswith("314")


def test_a_recipe_is_named_by_its_file(source, tmp_path):
    file = f"{PROJECT}/src/own_project/recipes.py:SORTING_TINY"
    ended = mb("check", file, "dataset.digits=300", environment=source)
    assert ended.returncode == 1
    assert ended.stderr.startswith("recipes, 1 process: 1 error")
    assert "error OWN1  dataset.digits: must be at most 256 (digits=300)" in ended.stdout


def test_the_tests_of_the_project_pass(source):
    environment = {**os.environ, **source}
    ended = subprocess.run(
        ["python", "-m", "pytest", "-q", str(PROJECT / "tests")],
        env=environment,
        cwd=PROJECT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
