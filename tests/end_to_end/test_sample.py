"""Text and perplexity of a checkpoint, through the commands."""

import json

import pytest
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
    assert exit_code_of("eval", run, "--all") == 0
    heading, columns, total, *buckets = capsys.readouterr().out.splitlines()
    assert (heading, columns.split()) == (f"step {found['step']}", ["set", "tokens", "loss", "perplexity"])
    tokens = [int(line.split()[-3].replace(",", "")) for line in (total, *buckets)]
    assert tokens[0] == sum(tokens[1:])


def test_a_folder_without_checkpoint_is_an_error(tmp_path, capsys):
    assert (
        exit_code_of("sample", tmp_path, "--prompt", "x", "--tokens", 1, "--temperature", 0.0, "--seed", 1)
        == 2
    )
    assert "has no checkpoint to sample from" in capsys.readouterr().err
