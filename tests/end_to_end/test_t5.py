"""A T5 through the main job: it learns, evaluates, resumes exactly, and is planned as it is built."""

import pytest
from any_rank import TP, standing_in
from runs import exit_code_of, losses, metrics, train_here

from mb_host.megatron.t5 import host_t5_spec
from mb_launch import World, pick_device
from mb_models import T5ModelProvider, padded_vocab_size, t5_parameter_count
from mb_plan import make_plan
from mb_trainer.config import ConfigContainer
from mb_trainer.recipes import RECIPES
from mb_trainer.requests import embedding_rows
from mb_verify import Recorder, compare, read_record


@pytest.fixture(scope="module")
def words(overrides):
    """Overrides that reduce t5_tiny, with dropout."""
    kept = [word for word in overrides if not word.startswith("model.num_query_groups")]
    lengths = ["dataset.decoder_seq_length=12", "model.decoder_seq_length=12"]
    steps = ["train.train_iters=24", "validation.eval_interval=8", "checkpoint.save_interval=null"]
    return ["t5_tiny", *kept, *lengths, *steps, "model.hidden_dropout=0.1", "optimizer.lr=0.01"]


@pytest.fixture(scope="module")
def runs(words, tmp_path_factory):
    """A folder with an uninterrupted run, and one that was interrupted after ten steps and resumed."""
    folder = tmp_path_factory.mktemp("t5")

    def run(name, start=0, also=()):
        recorder = Recorder(folder / f"record-{name}", rank=0, start=start)
        train_here([*words, *also], folder / name, callbacks=(recorder,), resume_with_changes=True)

    run("straight")
    run("cut", also=["train.exit_interval=10"])
    run("cut", start=1)
    return folder


def test_it_learns_and_evaluates(runs):
    seen, rows = losses(runs / "straight"), metrics(runs / "straight")
    assert list(seen) == [*range(1, 25)]
    assert seen[24] < 0.8 * seen[1]
    evaluated = {row["step"]: row["lm loss validation"] for row in rows if "lm loss validation" in row}
    assert [*evaluated] == [8, 16, 24]
    assert evaluated[24] < evaluated[8]
    assert "test lm loss" in (runs / "straight" / "log.txt").read_text()


def test_its_work_is_counted_as_it_was_planned(runs):
    config = ConfigContainer.from_yaml(runs / "straight" / "run_config.yaml")
    planned = make_plan(config.sections(), world_size=1, vocab_size=embedding_rows(config)).flops
    first = next(row for row in metrics(runs / "straight") if "throughput/tflops" in row)
    assert first["throughput/tflops"] * 1e12 / first["throughput/tokens_per_sec"] == pytest.approx(planned)


def test_a_resumed_run_equals_an_uninterrupted_one(runs):
    verdict = compare(read_record(runs / "record-straight"), read_record(runs / "record-cut"))
    assert (verdict.first, verdict.last_step, verdict.resumed_at) == (None, 24, (10,))


def test_it_continues_no_prompt(runs, capsys):
    assert (
        exit_code_of(
            "sample", runs / "cut", "--prompt", "the loop", "--tokens", 3, "--temperature", 0, "--seed", 1
        )
        == 1
    )
    assert "T5ModelConfig continues no text" in capsys.readouterr().err


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ["t5_tiny", "t5_base"])
def test_the_plan_counts_what_is_built(name, tp):
    model = RECIPES[name].build().model
    model.tensor_model_parallel_size, model.perform_initialization = tp, False
    model.vocab_size = rows = padded_vocab_size(32_100, divisible_by=128, tensor_parallel_size=tp)
    plan = make_plan({"model": model}, world_size=tp)
    with standing_in(tp - 1, tp, {TP: tp}) as groups:
        provider = T5ModelProvider(model, layer_spec=host_t5_spec, device=pick_device(World()))
        [built] = provider.provide_chunks(groups)
    assert sum(each.numel() for each in built.parameters()) == plan.stages[0].rank_parameters
    assert plan.parameters == t5_parameter_count(model, vocab_size=rows)
