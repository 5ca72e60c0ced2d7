"""`mb sweep`."""

import json

import pytest
from typer.testing import CliRunner

from mb_trainer.cli.app import app

TP, MICRO = "model.tensor_model_parallel_size", "train.micro_batch_size"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mb(*words):
    return CliRunner().invoke(app, ["sweep", *words])


def answer(*words):
    return json.loads(mb("--json", *words).stdout)


def test_every_point_is_shown_or_counted_with_the_rules_that_refuse_it():
    found = answer(f"{TP}=1,2,3", f"{MICRO}=[4,8]", "--world-size", "2")
    assert (found["points"], found["passing"]) == (6, 3)
    assert [point["values"] for point in found["shown"]] == [
        {TP: 1, MICRO: 4},
        {TP: 2, MICRO: 4},
        {TP: 2, MICRO: 8},
    ]
    assert [(group["count"], group["example"]) for group in found["rejected"]] == [
        (2, {TP: 3, MICRO: 4}),
        (1, {TP: 1, MICRO: 8}),
    ]
    assert "V030" in found["rejected"][0]["rules"]
    assert found["rejected"][1]["rules"] == ["V242"]
    assert set(found["rules"]["V242"]) == {"message", "why", "fix"}


def test_a_point_has_the_figures_of_its_plan():
    (point,) = answer(f"{TP}=2", f"{MICRO}=[4]", "--world-size", "2")["shown"]
    assert {**point, "bytes_per_rank": point["bytes_per_rank"] > 0} == {
        "values": {MICRO: 4},
        "data_parallel_size": 1,
        "num_microbatches": 2,
        "bytes_per_rank": True,
        "bubble_fraction": 0.0,
        "predicted": None,
        "fits": None,
        "rejected_when_resolved": [],
    }


def test_the_number_of_processes_is_swept_over_too():
    found = answer(f"{TP}=1,2", "--world-size", "1,2")
    assert [point["values"]["facts.world_size"] for point in found["shown"]] == [1, 2]


def test_tables_for_people():
    result = mb(f"{TP}=1,2,3", "--world-size", "2")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["tp", "dp", "microbatches", "MiB", "per", "rank", "waiting"]
    assert any(line.startswith("P02  model.num_attention_heads: 8 attention heads") for line in lines)
    assert lines[-2:] == [
        "3 points: 1 pass the rules as written, 2 rejected by them",
        "1 point resolved, 1 shown",
    ]


def test_what_passes_beyond_the_limit_is_counted():
    few = mb("optimizer.lr=1e-3,2e-3,3e-3", "--limit", "2")
    assert few.stdout.splitlines()[-1] == (
        "1 more pass as written and were not resolved: --limit N resolves and shows N, --limit 0 all"
    )
    assert len(answer("optimizer.lr=1e-3,2e-3,3e-3", "--limit", "0")["shown"]) == 3


def test_a_problem_that_only_resolution_shows_is_reported():
    words = ("mixed_precision=bf16_mixed", "optimizer.bf16=false,true")
    one, two = answer(*words)["shown"]
    assert (len(one["rejected_when_resolved"]), two["rejected_when_resolved"]) == (1, [])
    assert f"rejected as resolved: {one['rejected_when_resolved'][0]}" in mb(*words).stdout


def test_a_precision_and_a_list_are_values_of_their_own():
    found = answer("mixed_precision=null,bf16_mixed", "model.cp_comm_type=[p2p]")
    assert [point["values"] for point in found["shown"]] == [
        {"mixed_precision": None},
        {"mixed_precision": "bf16_mixed"},
    ]
    assert found["shown"][0]["bytes_per_rank"] != found["shown"][1]["bytes_per_rank"]


def test_lists_in_a_file_are_swept_over(empty_folder):
    (empty_folder / "more.yaml").write_text(
        "train: {micro_batch_size: [4, 8]}\nmodel: {tensor_model_parallel_size: [1, 2]}\n"
    )
    found = answer("--config", "more.yaml", f"{TP}=1")
    assert [point["values"] for point in found["shown"]] == [{MICRO: 4}, {MICRO: 8}]


def test_a_recipe_may_be_a_file_with_lists(empty_folder):
    from mb_trainer.requests import read_request

    text = read_request([]).config.to_yaml(defaults=False)
    (empty_folder / "mine.yaml").write_text(text.replace("micro_batch_size: 8", "micro_batch_size: [2, 8]"))
    assert [point["values"] for point in answer("mine.yaml")["shown"]] == [{MICRO: 2}, {MICRO: 8}]


def test_a_point_without_a_tokenizer_is_refused_and_has_no_figures():
    unknown = ("tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=nowhere")
    (point,) = answer(*unknown, f"{MICRO}=[4]")["shown"]
    assert (point["values"], point["bytes_per_rank"], point["num_microbatches"]) == ({MICRO: 4}, None, None)
    assert point["rejected_when_resolved"] == ["D99"]
    result = mb(*unknown, f"{MICRO}=[4]")
    assert (result.exit_code, result.stdout.splitlines()[3].split()[:5]) == (1, ["4", *"????"])


def test_if_none_passes_the_exit_code_is_1():
    assert mb(f"{TP}=2,4").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("train.no_such=1,2",),
        (f"{TP}=1,two",),
        (f"{TP}=interval(0,1)",),
        ("--world-size", "0"),
        ("no_recipe",),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(words):
    assert mb(*words).exit_code == 2


def test_a_sweep_over_nothing_reports_that():
    done = mb("gpt_tiny")
    assert (done.exit_code, done.stderr.startswith("nothing is swept over, so that this is one point")) == (
        0,
        True,
    )
    assert mb("gpt_tiny", f"{MICRO}=4,8").stderr == ""


@pytest.mark.parametrize("world_size", ["2", "1,2"])
def test_modules_with_per_module_parallelism_are_checked_as_one_configuration_is(world_size):
    found = answer("mimo_tiny", "model.language_rank_offset=0,1,2", f"{TP}=1,2", "--world-size", world_size)
    points = [point["values"] for point in found["shown"] if not point["rejected_when_resolved"]]
    assert {(point["model.language_rank_offset"], point[TP]) for point in points} == {(0, 1), (0, 2), (1, 1)}
    assert len(found["shown"]) == found["passing"]
    assert not any(point["rejected_when_resolved"] for point in found["shown"])


def test_the_best_points_of_a_sweep():
    found = answer(f"{MICRO}=4,1,2", "--top", "2")
    assert (found["passing"], found["resolved"], [point["values"][MICRO] for point in found["shown"]]) == (
        3,
        3,
        [1, 2],
    )
    lines = mb(f"{MICRO}=4,1,2", "--top", "1").stdout.splitlines()
    assert lines[-2:] == [
        "3 points: 3 pass the rules as written, 0 rejected by them",
        "3 points resolved, 1 shown",
    ]


@pytest.mark.parametrize(
    ("options", "resolved", "shown"),
    [((), 20, 20), (("--top", "1"), 22, 1), (("--top", "2", "--limit", "3"), 3, 2)],
)
def test_top_resolves_all_points_and_limit_some(options, resolved, shown):
    values = ",".join(f"{number}e-3" for number in range(1, 23))
    found = answer(f"optimizer.lr={values}", *options)
    assert (found["resolved"], len(found["shown"])) == (resolved, shown)


def test_all_layouts_are_swept_over_but_for_sizes_that_are_set():
    machine = ("--world-size", "2", "--gpu", "h100", "--te", "2.20", "--limit", "0")
    done = mb("--json", "--layouts", "model.pipeline_model_parallel_size=1", MICRO + "=1", *machine)
    points = [each["values"] for each in json.loads(done.stdout)["shown"]]
    assert (done.exit_code, {"model.pipeline_model_parallel_size", MICRO} & points[0].keys()) == (0, set())
    assert {each[TP] for each in points} == {1, 2}
    assert all(each["model.sequence_parallel"] for each in points if each[TP] > 1)
    assert "resolving and planning" in done.stderr


def test_a_world_size_to_sweep_over_is_positive():
    assert mb("--world-size", "0").exit_code == 2
