"""The commands of the documentation: their options exist, and their configurations can be read and pass the rules."""

import dataclasses
import json
import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from mb_metrics import names
from mb_trainer.cli.app import app
from mb_trainer.config import ConfigContainer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "meta" / "README.md", *sorted((ROOT / "meta" / "docs").rglob("*.md"))]
RUNS = ("pretrain", "finetune", "check", "plan", "verify-resume")
REJECTED = ("global_batch_size=7",)
"""Parts of commands that show a rejection."""
ELSEWHERE = ("inprocess_restart.active_world_size=", "$STEP", "...", "--import", ".py:", "imported/")
"""Parts of commands that need what a page only describes, or a program; `test_own_project.py` runs those."""
SECTIONS = [
    (field.name, [item for item in get_args(kind) or (kind,) if dataclasses.is_dataclass(item)])
    for field in dataclasses.fields(ConfigContainer)
    for kind in [get_type_hints(ConfigContainer)[field.name]]
    if field.name != "env_vars"
]
OF_THE_MACHINE = {"CK41", "CK53", "D99", "D120", "L02", "V053", "V064", "V244"}
"""Rules on what this machine lacks: weights, text and tokenizers of earlier commands of a page, extras, a GPU."""


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of the commands `mb ...` in the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        shlex.split(re.split(r" [&>]", line)[0], comments=True)[1:]
        for line in lines
        if line.startswith("mb ")
    ]


def files(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by the name in their first line: `# chat.yaml`."""
    blocks = re.findall(
        r"^```(?:yaml|python)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    named = {block: re.match(r"# ([\w/]+\.(?:yaml|py))\b", block) for block in blocks}
    return {found[1]: block for block, found in named.items() if found}


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
    for name, text in files(page_of(words)).items():
        Path(name).write_text(text)
    arguments = check_arguments(words)
    result = CliRunner().invoke(app, ["check", *arguments, "--json"])
    assert result.exit_code != 2, result.output
    rejecting = {
        found["id"] for found in json.loads(result.stdout)["problems"] if found["severity"] == "error"
    }
    shown = any(part in word for part in REJECTED for word in words)
    assert bool(rejecting - OF_THE_MACHINE) == shown, result.output


def page_of(words: list[str]) -> Path:
    """Return the page with a command."""
    return next(ROOT / name.partition(": ")[0] for name, each in COMMANDS.items() if each is words)


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
        if field not in fields[section] | {"_target_", "bin", "json", "py", "jsonl"}
    ]
    assert unknown == []


def test_the_files_of_the_explanations_exist():
    page = (ROOT / "meta" / "docs" / "explanation" / "ways.md").read_text(encoding="utf-8")
    named = re.findall(r"`(mb_\w+/[\w/]+\.\w+)`", page)
    sources = [ROOT / "meta" / "src", *(ROOT / "packages").glob("mb-*/src")]
    assert len(named) > 40
    assert [name for name in named if not any((source / name).is_file() for source in sources)] == []


def test_copied_code_has_no_prompts():
    """The site hides prompts and output while it copies; what Pygments marks as neither is Python or shell."""
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Generic

    blocks = []
    for page in [*PAGES, *sorted(ROOT.glob("packages/*/README.md"))]:
        marked = copied_code().mark_prompts(page.read_text(encoding="utf-8"))
        assert not re.search(r"^```(python|sh|text)?\n(>>>|\$) ", marked, re.MULTILINE), page
        blocks += re.findall(r"^```(pycon|console)\n(.*?)^```", marked, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 70
    for language, block in blocks:
        tokens = get_lexer_by_name(language).get_tokens(block)
        code = "".join(
            text for kind, text in tokens if kind not in Generic.Prompt and kind not in Generic.Output
        )
        assert ">>> " not in code
        if language == "pycon":
            compile(code.partition("Traceback")[0], "block", "exec")


def copied_code():
    """Return the module of the site's build that marks prompts."""
    spec = spec_from_file_location("copied_code", ROOT / "meta" / "docs_build" / "copied_code.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
