"""Settings of the loop in the main job: batch schedule, validation sets, evaluation only, progress.txt."""

import re
from dataclasses import dataclass

import pytest
from runs import events, losses, metrics, train_here
from typer.testing import CliRunner

from mb_config import ConfigError
from mb_data import ByteTokenizer, IndexedWriter
from mb_data.errors import ValidationDataError
from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.cli.app import app
from mb_trainer.config import DatasetProvider, GPTDatasetConfig
from mb_trainer.requests import read_request

EVALUATED = re.compile(
    r"validation loss at iteration (\d+)(?: on (\w+) set)? \| lm loss value: ([0-9.E+-]+) "
)


def test_the_batch_follows_a_schedule_also_across_a_resume(overrides, tmp_path):
    words = [*overrides, "train.train_iters=8", "validation.eval_interval=null"]
    words += ["train.step_batch_size_schedule='0:4 512:8'"]  # 512 tokens are 16 sequences
    train_here(words, tmp_path / "straight")
    rows = metrics(tmp_path / "straight")
    assert [row["batch-size"] for row in rows] == [4.0] * 4 + [8.0] * 4

    train_here([*words, "train.exit_interval=6"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    for name in ("lm loss", "learning-rate"):
        assert [row[name] for row in metrics(tmp_path / "run")] == [row[name] for row in rows]


def test_samples_of_a_schedule_end_the_run_also_across_a_resume_in_the_ramp(overrides, tmp_path):
    """46 samples are steps of 4, 4, 4, 4, 8, 8 and 8; 6 samples are less than a batch, and left out."""
    words = [*overrides, "train.train_iters=null", "train.train_samples=46", "train.global_batch_size=null"]
    words += [
        "scheduler.lr_warmup_iters=0",
        "scheduler.lr_warmup_samples=10",
        "validation.eval_interval=null",
    ]
    words += ["train.step_batch_size_schedule='0:4 512:8'"]  # 512 tokens are 16 sequences
    outcome = train_here(words, tmp_path / "straight")
    rows = metrics(tmp_path / "straight")
    assert outcome.step == 7
    assert [row["batch-size"] for row in rows] == [4.0] * 4 + [8.0] * 3

    train_here([*words, "train.exit_interval=3"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    for name in ("lm loss", "learning-rate", "grad-norm"):
        assert [row[name] for row in metrics(tmp_path / "run")] == [row[name] for row in rows]


def evaluated(text):
    """Return the step and loss that were printed for each set after training."""
    return {name or "validation": (int(step), float(loss)) for step, name, loss in EVALUATED.findall(text)}


def test_a_run_that_is_complete_can_be_evaluated_and_stays_as_it_is(overrides, tmp_path, capsys):
    words = [
        *overrides,
        "train.train_iters=4",
        "validation.eval_interval=2",
        "validation.full_validation=true",
    ]
    train_here(words, tmp_path / "run")
    printed = re.findall(r"validation loss at iteration \d+", capsys.readouterr().out)
    assert printed == [f"validation loss at iteration {step}" for step in (2, 4)]  # each evaluation once
    files = ["metrics.jsonl", "events.jsonl", "run_config.yaml"]
    before = [(tmp_path / "run" / name).read_bytes() for name in files]

    outcome = train_here([*words, "validation.skip_train=true"], tmp_path / "run")
    assert (outcome.reason, outcome.step, outcome.exit_code) == ("skip_train", 4, 0)
    assert [(tmp_path / "run" / name).read_bytes() for name in files] == before
    printed = evaluated(capsys.readouterr().out)
    whole = [row["lm loss validation"] for row in metrics(tmp_path / "run") if "lm loss validation" in row]
    assert printed["validation"] == (
        4,
        pytest.approx(whole[-1], rel=1e-6),
    )  # the complete set, so the same loss
    assert printed["test"][0] == 4
    assert train_here(words, tmp_path / "run").reason == "finished"  # complete, not another run

    (tmp_path / "file").touch()
    elsewhere = [*words, "validation.skip_train=true", f"checkpoint.load={tmp_path / 'run' / 'checkpoints'}"]
    assert train_here(elsewhere, tmp_path / "file" / "run").reason == "skip_train"
    text = capsys.readouterr().out
    assert "file is not a folder): there is no log.txt, and the folder is not locked" in text
    assert evaluated(text) == printed


def test_a_last_step_that_was_not_validated_is_validated_after_training(overrides, tmp_path, capsys):
    train_here([*overrides, "train.train_iters=3", "validation.eval_interval=2"], tmp_path / "run")
    step, loss = evaluated(capsys.readouterr().out)["validation"]
    assert step == 3
    assert metrics(tmp_path / "run")[-1]["lm loss validation"] == pytest.approx(loss, rel=1e-6)
    assert events(tmp_path / "run") == [
        ("start", 0),
        ("evaluation", 2),
        ("save", 3),
        ("evaluation", 3),
        ("stop", 3),
    ]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Write a pair of files whose documents repeat few bytes, for each of three names."""
    folder = tmp_path_factory.mktemp("pairs")
    for number, name in enumerate(("train", "books", "web")):
        with IndexedWriter(folder / name, dtype="uint16") as writer:
            for document in range(20):
                writer.add_document([97 + (document + number * place) % 7 for place in range(40)] + [256])
    return folder


def train_on_pairs(overrides, pairs, out, *words, callbacks=()):
    """Train four steps, with two validation sets of 25 sequences each."""
    request = read_request([*overrides, "train.train_iters=4", "validation.eval_interval=2", *words])
    request.config.dataset = GPTDatasetConfig(
        seq_length=32,
        blend_per_split=[
            ([str(pairs / "train")], None),
            ([str(pairs / "books"), str(pairs / "web")], [1.0, 1.0]),
            None,
        ],
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        num_workers=0,
    )
    request.config.tokenizer.tokenizer_type = "ByteTokenizer"
    assert ByteTokenizer().vocab_size == 257
    return pretrain(
        request.config, out=out, provenance=request.provenance, callbacks=callbacks, environment={}
    )


SEVERAL = "validation.multiple_validation_sets=true"


def validation(out):
    """Return the validation metrics of a run, by step."""
    found = {row["step"]: {k: v for k, v in row.items() if k.endswith("validation")} for row in metrics(out)}
    return {step: values for step, values in found.items() if values}


def test_several_validation_sets_are_reported_separately_also_after_a_resume(overrides, pairs, tmp_path):
    names = "validation.validation_set_names=[b,w]"
    train_on_pairs(overrides, pairs, tmp_path / "straight", SEVERAL, names)
    found = validation(tmp_path / "straight")
    assert [*found] == [2, 4]
    assert {*found[4]} == {"lm loss b validation", "lm loss w validation"}
    assert len({*found[4].values()}) == 2

    stop = "train.exit_interval=2"
    train_on_pairs(overrides, pairs, tmp_path / "run", SEVERAL, names, stop)
    train_on_pairs(overrides, pairs, tmp_path / "run", SEVERAL, names)
    assert validation(tmp_path / "run") == found


def test_whole_sets_are_read_from_their_beginning_each_time(overrides, pairs, tmp_path):
    still = ["optimizer.lr=0", "optimizer.min_lr=0", "validation.full_validation=true"]
    train_on_pairs(overrides, pairs, tmp_path / "run", SEVERAL, *still)
    found = validation(tmp_path / "run")
    assert found[2] == found[4]
    assert {*found[2]} == {"lm loss books validation", "lm loss web validation"}


class Batches(Callback):
    """Counts the batches of evaluations."""

    def __init__(self):
        self.number = 0

    def on_eval_step_end(self, context):
        self.number += 1


def test_whole_sets_are_counted_in_the_batches_that_are_read(overrides, pairs, tmp_path):
    words = ["validation.full_validation=true", "train.train_iters=2", "train.global_batch_size=10"]
    words += ["train.decrease_batch_size_if_needed=true"]  # 10 sequences become 8, and a set has 25
    counted = Batches()
    train_on_pairs(overrides, pairs, tmp_path / "run", SEVERAL, *words, callbacks=[counted])
    assert counted.number == 2 * -(-25 // 8)


def test_names_that_do_not_fit_the_sets_are_refused(overrides, pairs, tmp_path):
    with pytest.raises(ConfigError, match=r"1 names \(only\) for 2 prefixes"):
        train_on_pairs(overrides, pairs, tmp_path / "a", SEVERAL, "validation.validation_set_names=[only]")


@dataclass(kw_only=True)
class OneSet(DatasetProvider):
    """Custom data with one validation set."""

    seq_length: int = 32

    def build_datasets(self, context):
        """Return data that is never read."""
        return range(64), range(8), None


def test_one_set_in_the_place_of_several_is_refused_before_a_model_is_built(overrides, tmp_path, capsys):
    words = [word for word in overrides if not word.startswith("dataset.")]
    request = read_request([*words, "tokenizer.tokenizer_type=ByteTokenizer", SEVERAL])
    request.config.dataset = OneSet()
    with pytest.raises(ValidationDataError, match="OneSet returned one range as its validation data"):
        pretrain(request.config, out=tmp_path / "run", provenance=request.provenance, environment={})
    assert "M parameters" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_progress_is_written_next_to_the_checkpoints(overrides, tmp_path):
    words = [*overrides, "train.train_iters=4", "checkpoint.save_interval=2", "logger.log_progress=true"]
    words += ["validation.eval_interval=null"]
    train_here([*words, "train.exit_interval=2"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    lines = (tmp_path / "run/checkpoints/progress.txt").read_text().splitlines()
    start = ["Job ID: ", "# GPUs: 1", "Starting job"]
    saves = [["Job ID: ", "# GPUs: 1", "Saved checkpoint", f"Iteration: {step}"] for step in (2, 4)]
    assert [line.split("\t")[1:5] for line in lines] == [start, saves[0], start, saves[1]]
    assert lines[-1].endswith("\tTokens (in billions): 0.00")


INJECTED = [
    "rerun_state_machine.rerun_mode=validate_results",
    "rerun_state_machine.error_injection_rate=1",
    "train.train_iters=4",
    "checkpoint.save_interval=100",
]


def test_a_passing_fault_ends_the_run_with_17_and_saves_nothing(overrides, tmp_path):
    ended = CliRunner().invoke(app, ["pretrain", *overrides, *INJECTED, "--out", str(tmp_path / "run")])
    assert ended.exit_code == 17
    assert events(tmp_path / "run") == [("start", 0), ("stop", 1)]


def test_a_persistent_fault_ends_the_run_with_16_and_waits_for_another_device(overrides, tmp_path):
    words = [*overrides, *INJECTED, "rerun_state_machine.error_injection_type=persistent_error"]
    outcome = train_here(words, tmp_path / "run")
    assert (outcome.exit_code, outcome.step, outcome.saved) == (16, 1, True)
    again = train_here(words, tmp_path / "run")  # the same device does not settle it
    assert (again.exit_code, again.step, again.saved) == (16, 1, False)
    assert [event for event in events(tmp_path / "run") if event[0] == "save"] == [("save", 1)]


def test_a_run_whose_losses_are_watched_is_the_same_run(overrides, tmp_path):
    words = [*overrides, "train.train_iters=4", "validation.eval_interval=2"]
    train_here(words, tmp_path / "plain")
    watched = [*words, *INJECTED[:1], "rerun_state_machine.check_for_spiky_loss=true"]
    assert train_here(watched, tmp_path / "watched").exit_code == 0
    assert losses(tmp_path / "watched") == losses(tmp_path / "plain")
    assert validation(tmp_path / "watched") == validation(tmp_path / "plain")
