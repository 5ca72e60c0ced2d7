"""The commands of the documentation: their options exist, and their configurations can be read and pass the rules."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from mb_metrics import names
from mb_trainer.cli import app
from mb_trainer.config import ConfigContainer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "meta" / "README.md", *sorted((ROOT / "meta" / "docs").rglob("*.md"))]
RUNS = ("pretrain", "finetune", "check", "plan", "verify-resume")
REJECTED = ("global_batch_size=7",)
"""Parts of commands that show a rejection."""
ELSEWHERE = (
    "inprocess_restart.active_world_size=",
    "$STEP",
    "--import",
    ".py:",
    ".yaml",
    "...",
    "dataset.dataset_root=",
)
"""Parts of commands that need files or programs which a tutorial writes before."""
SECTIONS = [
    (field.name, [item for item in get_args(kind) or (kind,) if dataclasses.is_dataclass(item)])
    for field in dataclasses.fields(ConfigContainer)
    for kind in [get_type_hints(ConfigContainer)[field.name]]
    if field.name != "env_vars"
]
OF_THE_MACHINE = {"CK41", "CK53", "L02", "V053"}
"""Rules on what this machine lacks: weights and text that a tutorial has made before, extras, a GPU."""


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of the commands `mb ...` in the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        shlex.split(re.split(r" [&>]", line)[0], comments=True)[1:]
        for line in lines
        if line.startswith("mb ")
    ]


COMMANDS = {
    f"{page.relative_to(ROOT)}: {shlex.join(words)}": words for page in PAGES for words in commands(page)
}
CHECKED = {
    name: words
    for name, words in COMMANDS.items()
    if words[0] in RUNS and not any(part in name for part in ELSEWHERE)
}


def test_the_documentation_has_commands():
    assert len(COMMANDS) > 90
    assert len(CHECKED) > 30


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_the_options_of_a_command_exist(words):
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    own = rest[: rest.index("--")] if "--" in rest else rest
    known = {"--help", "--import", *(name for item in command.params for name in item.opts)}
    given = {word.partition("=")[0] for word in own if word.startswith("--")}
    assert given - known == set()


@pytest.mark.parametrize("words", CHECKED.values(), ids=CHECKED)
def test_a_run_is_not_rejected(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = check_arguments(words)
    result = CliRunner().invoke(app, ["check", *arguments, "--json"])
    assert result.exit_code != 2, result.output
    rejecting = {
        found["id"] for found in json.loads(result.stdout)["problems"] if found["severity"] == "error"
    }
    shown = any(part in word for part in REJECTED for word in words)
    assert bool(rejecting - OF_THE_MACHINE) == shown, result.output


def test_every_metric_of_a_run_is_documented():
    page = (ROOT / "meta" / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    recorded = names.NOT_LOSSES | names.ADDED_BY_METRICS | {names.ENERGY, names.POWER}
    aliases = {*names.BRIDGE_ALIASES.values()}
    assert [name for name in sorted(recorded - aliases) if name.rpartition("/")[2] not in page] == []


def test_the_fields_of_the_pages_exist():
    fields = {
        name: {field.name for item in classes for field in dataclasses.fields(item)}
        for name, classes in SECTIONS
    }
    named = re.compile(rf"`~?({'|'.join(fields)})\.([a-z0-9_]+)[`=. ]")
    unknown = [
        f"{page.relative_to(ROOT)}: {section}.{field}"
        for page in PAGES
        if page.name != "torchtitan.md"  # whose settings have names of the same form
        for section, field in named.findall(page.read_text(encoding="utf-8"))
        if field not in fields[section] | {"json", "py", "jsonl"}
    ]
    assert unknown == []


def check_arguments(words: list[str]) -> list[str]:
    """Return the arguments of `mb check` for those of a command that trains or plans."""
    known = {"--world-size", "--gpu", "--te", "--config"}
    kept, words = [], list(words[1:])
    while words:
        word = words.pop(0)
        if word == "--nproc":
            kept += ["--world-size", words.pop(0)]
        elif word in known:
            kept += [word, words.pop(0)]
        elif not word.startswith("--"):
            kept.append(word)
        elif word not in ("--kill", "--explain", "--resume-with-changes", "--json", "--allow-oom"):
            words.pop(0)
    return kept
