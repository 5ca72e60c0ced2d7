"""The commands `import-hf` and `export-hf`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mb_models.hf.export_part import WHOLE, ExportPart
from mb_trainer.cli.app import app
from mb_trainer.commands import weights


class Conversions:
    """Conversions that record their arguments."""

    def __init__(self):
        self.calls = []

    def import_folder(self, folder, out):
        self.calls.append((folder, out))
        return 1_500_000

    def export_run(self, run, out, *, log, **options):
        log("skipped one")
        self.calls.append((run, out, options))
        return 7


@pytest.fixture
def run(monkeypatch):
    conversions = Conversions()
    monkeypatch.setattr(weights, "converter", lambda: conversions)

    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words]), conversions.calls

    return call


def test_a_folder_is_imported(run, tmp_path):
    answer, calls = run("import-hf", "llama", "--out", tmp_path)
    assert (answer.exit_code, calls) == (0, [(Path("llama"), tmp_path)])
    assert f"1.5 M parameters in {tmp_path / 'checkpoints'}" in answer.stdout


DEFAULTS = {
    "adapters": False,
    "merge": False,
    "model_type": None,
    "source": None,
    "part": WHOLE,
    "shard_bytes": 2 * 2**30,
}


@pytest.mark.parametrize(
    ("flags", "options", "text"),
    [
        ([], {}, "weights of step 7"),
        (["--merge"], {"merge": True}, "weights of step 7"),
        (["--adapters"], {"adapters": True}, "adapters of step 7"),
        (["--model-type", "phi3"], {"model_type": "phi3"}, "weights of step 7"),
        (["--source", "models/phi"], {"source": Path("models/phi")}, "weights of step 7"),
        (["--shard-gib", "0.5", "--part", "1/4"],
         {"part": ExportPart(index=1, count=4), "shard_bytes": 2**29}, "part 1/4 of the weights of step 7"),
    ],
)  # fmt: skip
def test_a_run_is_exported(run, flags, options, text, tmp_path):
    answer, calls = run("export-hf", "runs/a", "--out", tmp_path, *flags)
    assert (answer.exit_code, calls) == (0, [(Path("runs/a"), tmp_path, DEFAULTS | options)])
    assert f"{text} in {tmp_path}" in answer.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--part", "4/4"], "4/4 does not exist"),
        (["--part", "half"], "'half' is not of the form I/N"),
        (["--part", "0/2", "--adapters"], "excludes --adapters"),
    ],
)
def test_a_part_is_two_numbers_of_weights(run, flags, message, tmp_path):
    answer, calls = run("export-hf", "runs/a", "--out", tmp_path, *flags)
    assert (answer.exit_code, calls) == (2, [])
    assert message in " ".join(answer.output.split())


def test_merged_weights_and_adapters_alone_exclude_each_other(run, tmp_path):
    answer, calls = run("export-hf", "runs/a", "--out", tmp_path, "--merge", "--adapters")
    assert (answer.exit_code, calls) == (2, [])
    assert "excludes --adapters" in answer.output


@pytest.mark.parametrize("command", ["import-hf", "export-hf"])
def test_an_output_folder_with_files_is_rejected(run, command, tmp_path):
    (tmp_path / "file").touch()
    answer, calls = run(command, "runs/a", "--out", tmp_path)
    assert (answer.exit_code, calls) == (1, [])
    assert (
        f"--out: {tmp_path} holds files, which would be mixed with the new ones. Name another."
        in answer.stderr
    )


@pytest.mark.parametrize(
    "command", [["import-hf", "model"], ["export-hf", "run"], ["export-hf", "run", "--part", "1/2"]]
)
def test_an_output_folder_that_is_not_utf_8_is_rejected(run, command, tmp_path):
    answer = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "caf\udce9")])
    assert answer.exit_code == 2
    assert "caf\\udce9 is not UTF-8. Name another folder." in answer.stderr
