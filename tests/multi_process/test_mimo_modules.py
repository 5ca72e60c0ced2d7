"""Encoder and language model with per-module parallelism in the main job: results of one process, exact resume."""

import json
import os
from pathlib import Path

import pytest
from runs import TINY_MIMO, events, metrics, rank_pool, train_here

WORDS = [
    *TINY_MIMO,
    "model.vocab_size=384",
    "train.train_iters=5",
    "train.global_batch_size=8",
    "train.micro_batch_size=4",
    "validation.eval_interval=4",
    "validation.eval_iters=1",
    "logger.log_interval=2",
    "logger.log_params_norm=true",
    "logger.log_l2_norm_grad_to_tensorboard=true",
    "logger.log_memory_to_tensorboard=true",  # reduced over all ranks, also of those without losses
]
ALL_RANKS = "model.hidden_dropout=0"
"""Ranks of several replicas or parts would drop other numbers than one process."""
APART, VISION_TP, TP = (
    "model.language_rank_offset",
    "model.vision_tensor_model_parallel_size",
    "model.tensor_model_parallel_size",
)
LAYOUTS = {
    "one rank each": (2, [f"{APART}=1"]),
    "same ranks, encoder TP2, language model DP2": (2, [f"{VISION_TP}=2"]),
    "same ranks, encoder DP2, language model TP2": (2, [f"{VISION_TP}=1", f"{TP}=2"]),
    "encoder DP2, then language model TP2": (4, [f"{APART}=2", f"{VISION_TP}=1", f"{TP}=2"]),
    "encoder TP2, then language model DP2": (4, [f"{APART}=2", f"{VISION_TP}=2"]),
    "encoder, then language model DP3": (4, [f"{APART}=1", "train.micro_batch_size=3", "train.global_batch_size=6"]),
}  # fmt: skip
FEW = ("one rank each", "same ranks, encoder TP2, language model DP2")
"""Layouts that are tested by default."""


def train_on_this_rank(words: list[str], out: str, start: int) -> None:
    """Train as a process of a job that has its groups already, and record everything that this rank holds."""
    from mb_trainer import pretrain
    from mb_trainer.requests import read_request
    from mb_verify import Recorder

    request = read_request(words)
    pretrain(
        request.config,
        name=request.name,
        out=Path(out),
        provenance=request.provenance,
        callbacks=(Recorder(Path(out, "record"), rank=int(os.environ["RANK"]), start=start),),
        resume_with_changes=bool(start),
        environment=dict(os.environ),
    )


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Override that sets the initial weights: those of a run in one process."""
    folder = tmp_path_factory.mktemp("start")
    train_here([*WORDS, "train.train_iters=1"], folder)
    return f"checkpoint.pretrained_checkpoint={folder}/checkpoints"


@pytest.fixture(scope="module")
def ranks():
    """Pools by their number of ranks."""
    pools = {number: rank_pool(number) for number in (2, 4)}
    with pools[2], pools[4]:
        yield pools


def measured(out):
    """Return the metrics of each step and evaluation, without times and memory."""
    kept = ("lm loss", "grad-norm", "params-norm", "l2_norm/")
    return [
        {"step": row["step"], **{name: row[name] for name in row if name.startswith(kept)}}
        for row in metrics(out)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name not in FEW)) for name in LAYOUTS]
)
def test_modules_train_as_one_process_does(weights, ranks, name, tmp_path):
    number, layout = LAYOUTS[name]
    batch = [word for word in layout if word.startswith("train.")]
    train_here([*WORDS, ALL_RANKS, weights, *batch], tmp_path / "one")
    ranks[number].run(train_on_this_rank, [*WORDS, ALL_RANKS, weights, *layout], str(tmp_path / "run"), 0)
    alone, together = measured(tmp_path / "one"), measured(tmp_path / "run")
    assert [row.keys() for row in together] == [row.keys() for row in alone]
    for row, reference in zip(together, alone, strict=True):
        assert row == pytest.approx(reference, abs=1e-5, rel=1e-5)
    assert events(tmp_path / "run") == events(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name not in FEW)) for name in (*FEW, [*LAYOUTS][3])],
)
def test_interrupted_modules_resume_exactly(ranks, name, tmp_path):
    from mb_checkpoint import describe_checkpoint
    from mb_verify import compare, read_record

    number, layout = LAYOUTS[name]

    def run(folder, start, *more):
        ranks[number].run(train_on_this_rank, [*WORDS, *layout, *more], str(tmp_path / folder), start)

    run("straight", 0)
    run("cut", 0, "train.exit_interval=2")
    run("cut", 1)
    verdict = compare(read_record(tmp_path / "straight/record"), read_record(tmp_path / "cut/record"))
    assert (verdict.first, verdict.ranks, verdict.last_step, verdict.resumed_at) == (None, number, 5, (2,))
    assert {"optimizer", "parameters", "random streams"} <= {line.category for line in verdict.lines}
    assert measured(tmp_path / "cut") == measured(tmp_path / "straight")
    stored = describe_checkpoint(tmp_path / "cut" / "checkpoints").manifest.layout
    ranks_of = {
        module: stored[f"{module}.tensor_model_parallel_size"] * stored[f"{module}.data_parallel_size"]
        for module in ("vision", "language")
    }
    apart = stored["language.first_rank"] > 0
    total = sum(ranks_of.values()) if apart else ranks_of["language"]
    assert (stored["world_size"], total) == (number, number)


@pytest.mark.matrix
@pytest.mark.slow
def test_modules_killed_by_the_command_line_resume_exactly():
    from runs import mb

    ended = mb("verify-resume", *WORDS, f"{APART}=1", "--nproc=2", "--steps=6", "--cut=3", "--kill", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert (found["equal"], found["resumed_at"], found["killed"]) == (True, [3], True)
