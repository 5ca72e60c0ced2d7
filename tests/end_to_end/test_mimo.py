"""A vision-language model in the main job: it learns from images, evaluates, and resumes exactly."""

import pytest
from runs import TINY_MIMO, losses, metrics, train_here

from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_trainer.recipes import mimo_tiny
from mb_trainer.requests import examine_request
from mb_trainer.run.settle import RunOptions, settle_job
from mb_verify import Recorder, compare, read_record

WORDS = [
    *TINY_MIMO,
    "train.train_iters=20",
    "train.global_batch_size=4",
    "train.micro_batch_size=2",
    "validation.eval_interval=8",
    "optimizer.lr=0.01",
    "logger.log_interval=5",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with an uninterrupted run, and one that was interrupted after nine steps and resumed."""
    folder = tmp_path_factory.mktemp("mimo")

    def run(name, start=0, also=()):
        recorder = Recorder(folder / f"record-{name}", rank=0, start=start)
        train_here([*WORDS, *also], folder / name, callbacks=(recorder,), resume_with_changes=bool(start))

    run("straight")
    run("cut", also=["train.exit_interval=9"])
    run("cut", start=1)
    return folder


def test_it_learns_and_evaluates(runs):
    seen, rows = losses(runs / "straight"), metrics(runs / "straight")
    assert seen[20] < 0.6 * seen[1]
    evaluated = {row["step"]: row["lm loss validation"] for row in rows if "lm loss validation" in row}
    assert [*evaluated] == [8, 16, 20]
    assert evaluated[20] < evaluated[8]
    log = (runs / "straight" / "log.txt").read_text()
    assert "test lm loss" in log
    assert "no TFLOP/s" not in log


def test_a_resumed_run_equals_an_uninterrupted_one(runs):
    verdict = compare(read_record(runs / "record-straight"), read_record(runs / "record-cut"))
    assert (verdict.first, verdict.last_step, verdict.resumed_at) == (None, 20, (9,))


def test_the_section_of_the_data_is_settled_before_two_runs_are_compared(tmp_path):
    config = settle_job(mimo_tiny(), RunOptions(out=tmp_path)).config
    assert (config.dataset.num_workers, config.dataset.persistent_workers) == (0, False)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["mimo_tiny", "model.pipeline_model_parallel_size=2"], "M05"),
        (["mimo_tiny", "dataset.image_size=64"], "M11"),
        (["mimo_tiny", "model.patch_size=16"], "M12"),
        (["mimo_tiny", "dataset.image_token_id=-1"], "M13"),
    ],
)
def test_what_it_cannot_do_is_refused_before_it_is_built(words, rule):
    findings = examine_request(CommandInput(arguments=words), target=TargetMachine(world_size=2)).result
    assert [problem.id for problem in findings.errors] == [rule]
