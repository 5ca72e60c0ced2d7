"""`mb plan`."""

import json
import shlex
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from mb_models import parameter_count
from mb_trainer.cli.app import app
from mb_trainer.requests import read_request


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mb(*words):
    return CliRunner().invoke(app, words)


def answer(*words):
    return json.loads(mb("plan", "--json", *words).stdout)


def test_json_has_every_figure():
    found = answer("--world-size", "2", "train.micro_batch_size=1")
    assert {name: value if not isinstance(value, dict) else list(value) for name, value in found.items()} == {
        "parameters": ["total", "adapters", "active", "embedding", "per_stage", "per_rank_max"],
        "bytes_per_rank": ["weights", "gradients", "optimizer", "activations", "total"],
        "flops_per_token": ["total", "attention_linear", "attention_core", "mlp", "logits"],
        "flops_per_step": found["flops_per_token"]["total"] * 8 * 256,
        "num_microbatches": 4,
        "data_parallel_size": 2,
        "overhead_bytes": ["cuda", "nccl", "fragmentation", "graphs"],
        "bubble_fraction": 0.0,
        "checkpoint_bytes": 12 * found["parameters"]["total"],
        "gpu": None,
        "fits": None,
        "fits_with": None,
        "predicted": None,
        "saves": None,
    }
    assert (
        sum(found["bytes_per_rank"][name] for name in ("weights", "gradients", "optimizer", "activations"))
        == (found["bytes_per_rank"]["total"])
    )


@pytest.mark.parametrize("size", ["num_layers", "mtp_num_layers", "pipeline_model_parallel_size"])
def test_a_slip_in_a_size_is_one_message(size):
    done = mb("plan", f"model.{size}=999999999")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: model.{size}: ")
    assert "999,999,999" in done.stderr


def test_the_parameters_are_those_that_the_trainer_reports():
    model = read_request([]).config.model
    assert answer()["parameters"]["total"] == parameter_count(model, vocab_size=4096)


def test_the_tokenizer_sets_the_rows_where_the_model_does_not():
    null = ("tokenizer.tokenizer_type=NullTokenizer", "tokenizer.vocab_size=1000")
    assert answer(*null)["parameters"]["embedding"] == 2 * 1024 * 256
    assert answer("model.vocab_size=1000")["parameters"]["embedding"] == 2 * 1000 * 256


def test_a_precision_recipe_is_resolved_first():
    assert (
        answer("mixed_precision=bf16_mixed")["bytes_per_rank"]["weights"]
        == 2 * answer()["parameters"]["total"]
    )


def test_without_a_world_size_the_fewest_processes_are_planned():
    result = mb("plan", "model.pipeline_model_parallel_size=4")
    assert (result.exit_code, result.stdout.startswith("gpt_tiny on 4 processes (pp 4, dp 1); memory")) == (
        0,
        True,
    )
    assert "planned for the fewest processes that hold the model, 4" in result.stderr


def test_the_fullest_stage_is_marked_and_compared_with_the_gpu():
    words = ("plan", "model.pipeline_model_parallel_size=2", "--world-size", "2", "--gpu", "h100")
    lines = mb(*words).stdout.splitlines()
    assert sum(line.split()[:1] == ["fullest"] for line in lines) == 1
    assert lines[-1].startswith(
        "memory           fits: 1.03 of the 79.10 GiB of h100 (1%), of which an estimated 0.62 for"
    )


def test_a_model_that_does_not_fit_is_reported():
    words = ("plan", "model.hidden_size=65536", "model.vocab_size=65536", "--gpu", "h100")
    result = mb(*words)
    assert result.exit_code == 1
    memory, fits_with = result.stdout.splitlines()[-2:]
    assert memory.startswith("memory           does not fit: ")
    assert fits_with.startswith("fits with        none of the changes tried")
    found = json.loads(mb(*words, "--json").stdout)
    assert (found["gpu"], found["fits"]) == ("h100", False)
    fitting = mb("plan", "--gpu", "h100", "--json")
    assert (fitting.exit_code, json.loads(fitting.stdout)["fits"]) == (0, True)
    assert json.loads(mb("plan", "--json").stdout)["fits"] is None


def test_the_change_that_it_names_fits_and_passes_the_rules():
    sizes = ("model.tensor_model_parallel_size=1", "train.micro_batch_size=4")
    words = ("llama31_8b", "--world-size", "8", "--gpu", "h100", *sizes)
    shown = mb("plan", *words).stdout
    assert "does not fit" in shown
    [line] = [line for line in shown.splitlines() if line.startswith("fits with")]
    changed = mb("plan", *words, *shlex.split(line.removeprefix("fits with")))
    assert (changed.exit_code, "memory           fits" in changed.stdout) == (0, True)


def test_what_check_would_refuse_is_planned_as_far_as_it_goes():
    result = mb("plan", "train.global_batch_size=7", "--world-size", "2", "--gpu", "h100")
    assert (result.exit_code, "1 problem, see mb check" in result.stderr) == (1, True)
    assert "memory           not counted in full" in result.stdout


def test_what_cannot_be_counted_is_refused_with_the_reason():
    result = mb("plan", "model.pipeline_model_parallel_size=3")
    assert (result.exit_code, "4 layers cannot be divided equally over 3 stages" in result.stderr) == (
        1,
        True,
    )
    assert mb("plan", "model.pipeline_model_parallel_size=0").exit_code == 1


def test_an_unknown_gpu_is_rejected_with_one_mention_of_the_option():
    done = mb("plan", "--gpu", "abacus")
    assert (done.exit_code, done.stderr.count("--gpu")) == (2, 1)
    assert "'abacus' is not a known GPU" in done.stderr


def test_the_parts_of_the_step_are_drawn_next_to_the_memory(tmp_path):
    done = mb(
        "plan",
        "mixed_precision=bf16_mixed",
        "--gpu",
        "h100",
        "--explain",
        "--chart",
        str(tmp_path / "plan.svg"),
    )
    assert f"step chart written to {tmp_path / 'plan-step.svg'}" in done.stderr
    assert "products in BF16" in (tmp_path / "plan-step.svg").read_text()


def test_the_chart_has_a_bar_for_each_stage(empty_folder):
    words = ("plan", "model.pipeline_model_parallel_size=2", "--chart", "charts/p.svg", "--gpu", "a100")
    assert mb(*words).exit_code == 0
    root = ElementTree.parse(empty_folder / "charts" / "p.svg").getroot()
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 4


def test_a_chart_is_svg():
    result = mb("plan", "--chart", "p.png")
    assert (result.exit_code, "ends in .svg" in result.stderr) == (2, True)


def test_work_that_is_not_known_is_left_out_with_a_note():
    result = mb("plan", "dataset.seq_length=0", "model.seq_length=0", "--json")
    assert (
        json.loads(result.stdout)["flops_per_token"],
        "the sequence length is not known, so that" in result.stderr,
    ) == (None, True)


@pytest.mark.parametrize(
    ("number", "text"), [(12.0, "12 FLOP"), (2.5e13, "25 TFLOP"), (1e26, "100,000 ZFLOP")]
)
def test_numbers_of_operations_have_prefixes(number, text):
    from mb_plan.cli.plan_report import format_flops

    assert format_flops(number) == text


def test_check_rejects_a_run_whose_state_does_not_fit():
    words = (
        "check",
        "model.hidden_size=65536",
        "model.vocab_size=65536",
        "--world-size",
        "1",
        "--gpu",
        "h100",
    )
    found = mb(*words)
    assert found.exit_code == 1
    assert [line.split()[1] for line in found.stdout.splitlines() if line.startswith("  error ")] == ["PL01"]
    assert "PL0" not in mb("check", "--world-size", "1", "--gpu", "h100").stdout


def test_check_warns_if_the_size_of_the_vocabulary_comes_from_the_tokenizer():
    words = (
        "check",
        "llama31_8b",
        "model.vocab_size=null",
        "--world-size",
        "8",
        "--gpu",
        "h100",
        "--te",
        "2.20",
    )
    warned = mb(*words, "train.micro_batch_size=4").stderr.splitlines()
    assert [line.partition(" needs")[0] for line in warned if line.startswith("warning")] == [
        "warning: the fullest rank"
    ]


def test_the_path_of_a_chart_is_printed(tmp_path):
    for option in ("--chart", "--picture"):
        file = tmp_path / option / "memory.svg"
        done = mb("plan", option, str(file))
        assert (done.exit_code, file.read_text()[:4]) == (0, "<svg")
        assert f"memory chart written to {file}" in done.stderr.splitlines()
    assert "--picture" not in mb("plan", "--help").stdout


def test_a_file_without_access_is_exit_code_two(tmp_path):
    (tmp_path / "run.yaml").touch()
    done = mb("plan", "--chart", str(tmp_path / "run.yaml" / "p.svg"))
    assert (done.exit_code, f"{tmp_path / 'run.yaml'}: cannot be used (" in done.stderr) == (2, True)
