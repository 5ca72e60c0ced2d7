"""Weights that `mb finetune` requires before the rules are applied."""

from typer.testing import CliRunner

from mb_trainer.cli.app import app


def test_without_weights_it_is_refused_by_a_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, message in (
        ([], "is not set"),
        (["checkpoint.pretrained_checkpoint=nowhere"], "no such folder: nowhere"),
    ):
        done = CliRunner().invoke(app, ["finetune", "gpt_tiny", *words])
        assert (
            done.exit_code,
            done.stderr.startswith(
                "error: the configuration has 1 problem\ncheckpoint\n"
                "  error V244  checkpoint.pretrained_checkpoint: "
            ),
        ) == (1, True)
        assert message in done.stderr
