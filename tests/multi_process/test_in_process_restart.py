"""`mb pretrain` with in-process restarts: a rank raises, one dies and one hangs; spare ranks replace them."""

import json
import re
from pathlib import Path

import pytest
from runs import events, losses, mb, metrics

pytest.importorskip("nvidia_resiliency_ext")
RECIPE = f"{Path(__file__).parent / 'faulty_gpt.py'}:recipe"
RESTARTS = [
    "inprocess_restart.enabled=true",
    "inprocess_restart.granularity=rank",
    "inprocess_restart.soft_timeout=15",
    "inprocess_restart.hard_timeout=18",
    "inprocess_restart.last_call_wait=0.2",
    "inprocess_restart.monitor_process_interval=0.2",
]
BACKGROUND = [
    "checkpoint.async_save=true",
    "checkpoint.async_write_results_mp_mode=fork",
    "dataset.num_workers=1",
]
"""Saves in flight and data workers, whose processes end with each attempt."""
SHORT = ["train.train_iters=12", "checkpoint.save_interval=3", "validation.eval_interval=6"]


def run(out: Path, words: list[str], *, faults=(), processes: int = 2, restarts: tuple[str, ...] = ()):
    """Run the recipe with faults; return the finished process."""
    faulty = out.with_name(f"{out.name}_faults")
    faulty.mkdir(parents=True)
    environment = {"PLANTED_FAULTS": json.dumps(faults), "PLANTED_FAULT_FOLDER": str(faulty)}
    settings = [*words, *SHORT, *restarts]
    return mb("pretrain", RECIPE, *settings, f"--out={out}", f"--nproc={processes}", environment=environment)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, overrides) -> dict[int, float]:
    """Losses of two ranks without a fault."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(out, overrides).returncode == 0
    return losses(out)


@pytest.mark.slow
def test_a_run_survives_a_raise_a_death_and_a_hang_bit_for_bit(tmp_path, overrides, undisturbed):
    faults = [(1, "raise", 4), (0, "kill", 7), (1, "hang", 10)]
    limits = ("inprocess_restart.active_world_size=2", "inprocess_restart.max_iterations=3")
    out = tmp_path / "run"
    ended = run(out, overrides, faults=faults, processes=4, restarts=(*RESTARTS, *limits, *BACKGROUND))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(out) == undisturbed
    assert [row["step"] for row in metrics(out) if "lm loss" in row] == [*range(1, 13)]
    resumed = [step for event, step in events(out) if event in ("start", "resume")]
    # a save may be in flight when a rank fails, and is lost then
    assert len(resumed) == 4
    assert all(
        step in (0, 3, 6, 9) and step <= most for step, most in zip(resumed, (0, 3, 6, 9), strict=True)
    )
    causes = [row["faults"][0] for row in read_resumes(out)]
    assert causes == [
        "rank 1 raised RuntimeError: a planted fault",
        "rank 0 was killed, or its process ended",
        "rank 1 made no progress for hard_timeout, and was killed",
    ]
    assert re.search(r"^in-process restart 3: rank 1 made no progress", ended.stdout, re.M)


@pytest.mark.slow
def test_the_last_permitted_restart_ends_the_run_with_its_cause(tmp_path, overrides):
    faults = [(1, "raise", 4), (1, "raise", 5)]
    limit = "inprocess_restart.max_iterations=1"
    ended = run(tmp_path / "run", overrides, faults=faults, restarts=(*RESTARTS, limit))
    assert ended.returncode == 1
    assert (
        "inprocess_restart.max_iterations: after 1 restarts (rank 1 raised RuntimeError: a planted"
        in ended.stderr
    )
    assert "Broken pipe" not in ended.stderr


def read_resumes(out: Path) -> list[dict]:
    """Return the events with which attempts resumed."""
    rows = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [row for row in rows if "in_process_restart" in row]
