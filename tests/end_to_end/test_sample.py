"""Text and perplexity of a checkpoint, through the commands."""

import json
import sys
from pathlib import Path

import pytest
import typer
import yaml
from runs import exit_code_of, metrics, train_here


@pytest.fixture(scope="module")
def run(overrides, tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("sampled") / "run"
    train_here(overrides, out)
    return out


def sampled(run, capsys, **options) -> str:
    choices = {"prompt": "the loop", "tokens": 12, "temperature": 0.8, "seed": 1} | options
    assert (
        exit_code_of(
            "sample", run, *(word for name, value in choices.items() for word in (f"--{name}", value))
        )
        == 0
    )
    return capsys.readouterr().out


def test_the_text_begins_with_the_prompt_and_continues(run, capsys):
    text = sampled(run, capsys)
    assert text.startswith("the loop")
    assert len(text) > len("the loop\n")


def test_the_same_seed_samples_the_same_text(run, capsys):
    assert sampled(run, capsys) == sampled(run, capsys)
    assert sampled(run, capsys, tokens=40) != sampled(run, capsys, tokens=40, seed=2)


def test_the_text_ends_at_the_tokens_of_generation_config(run, capsys):
    file = sorted((run / "checkpoints").glob("iter_*"))[-1] / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": list(range(300))}))
    text = sampled(run, capsys)
    file.unlink()
    assert text == "the loop\n"


def test_several_prompts_give_rows_of_json_and_a_chat_needs_a_template(run, capsys):
    words = ("sample", run, "--prompt", "the loop", "--prompt", "if", "--tokens", 4, "--temperature", 0.0)
    assert exit_code_of(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["prompt"] for row in rows] == ["the loop", "if"]
    assert exit_code_of(*words) == 0
    assert capsys.readouterr().out == "\n\n".join(row["prompt"] + row["text"] for row in rows) + "\n"
    assert exit_code_of(*words, "--chat") == 2
    assert "the tokenizer of the run has no chat template" in capsys.readouterr().err


def test_the_perplexity_is_that_of_the_validation_in_training(run, capsys):
    assert exit_code_of("eval", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    validated = [row for row in metrics(run) if "lm loss validation" in row][-1]
    assert found["step"] == validated["step"]
    assert found["sets"][0]["loss"] == pytest.approx(validated["lm loss validation"], rel=1e-6)
    overrides = yaml.safe_load((run / "run_config.yaml").read_text())
    files = Path(overrides["dataset"]["cache_dir"]).glob("corpora/*/valid.bin")
    held_out = {path.stat().st_size // 2 for path in files}  # tokens of two bytes
    assert exit_code_of("eval", run, "--all") == 0
    heading, columns, total, *buckets = capsys.readouterr().out.splitlines()
    assert (heading, columns.split()) == (f"step {found['step']}", ["set", "tokens", "loss", "perplexity"])
    tokens = [int(line.split()[-3].replace(",", "")) for line in (total, *buckets)]
    assert tokens[0] == sum(tokens[1:])
    assert {tokens[0] + 1} == held_out, "each token but the first is predicted once"


def test_tasks_are_evaluated_through_the_harness_and_their_options_need_them(run, capsys, tmp_path):
    pytest.importorskip("lm_eval")
    (tmp_path / "data.jsonl").write_text('{"text": "the loop if"}\n{"text": "the loop the loop"}\n')
    task = {
        "task": "words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    (tmp_path / "words.yaml").write_text(json.dumps(task))
    words = ("eval", run, "--tasks", tmp_path / "words.yaml", "--batch-size", 4)
    assert exit_code_of(*words) == 0
    heading, columns, row = capsys.readouterr().out.splitlines()
    assert (heading, columns.split()[0], row.split()[:2]) == ("step 20", "task", ["words", "byte_perplexity"])
    assert exit_code_of(*words, "--json", "--limit", 1) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["metric"], each["documents"]) for each in found["metrics"]] == [("byte_perplexity", 1)]
    assert 1 < found["metrics"][0]["value"] < 300
    assert exit_code_of("eval", run, "--tasks", "a.yaml") == 2
    assert "no such file (a.yaml)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--limit", 1), "needs --tasks"),
        (("--tasks", "a.yaml,"), "between the commas"),
        (("--tasks", "a.yaml", "--all"), "applies to the held-out data"),
    ],
)
def test_options_of_tasks_need_tasks(run, words, problem):
    with pytest.raises(typer.BadParameter, match=problem):
        exit_code_of("eval", run, *words)


class WithoutHarness:
    """Import hook of an environment without lm_eval."""

    def find_spec(self, name, path=None, target=None):
        if name == "lm_eval":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_missing_harness_is_named(run, capsys, monkeypatch):
    for name in [*sys.modules]:
        if name.startswith(("lm_eval", "mb_models.evaluation.lm_eval")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutHarness(), *sys.meta_path])
    assert exit_code_of("eval", run, "--tasks", "words.yaml") == 2
    assert 'pip install "mb-models[lm-eval]"' in capsys.readouterr().err


def test_a_folder_without_checkpoint_is_an_error(tmp_path, capsys):
    assert (
        exit_code_of("sample", tmp_path, "--prompt", "x", "--tokens", 1, "--temperature", 0.0, "--seed", 1)
        == 2
    )
    assert "has no checkpoint to sample from" in capsys.readouterr().err
