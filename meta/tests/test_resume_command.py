"""The command that resumes a run, as the user typed it."""

import sys

from mb_trainer.commands.train import typed


def test_the_resume_command_is_complete(monkeypatch):
    """The step that it names applies until a newer checkpoint is saved."""
    words = ["pretrain", "checkpoint.ckpt_step=6", "checkpoint.load=my base"]
    monkeypatch.setattr(sys, "argv", ["/bin/mb", *words])
    assert typed({}) == "mb pretrain checkpoint.ckpt_step=6 'checkpoint.load=my base'"
    assert typed({"UV_RUN_RECURSION_DEPTH": "1"}).startswith("uv run mb pretrain")


def test_the_resume_command_shows_no_secret(monkeypatch):
    argv = ["mb", "pretrain", "env_vars.OPENAI_API_KEY=c0ffee in clear", "optimizer.lr=1e-3"]
    monkeypatch.setattr("sys.argv", argv)
    assert typed({}) == "mb pretrain 'env_vars.OPENAI_API_KEY=<masked>' optimizer.lr=1e-3"
