"""Pages of the command lines: every command with its arguments and options, from the typer apps."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from api_pages import cell

import mb_checkpoint.cli.app
import mb_config.cli.app
import mb_data.cli.app
import mb_guard.cli
import mb_launch.cli.app
import mb_metrics.cli.app
import mb_plan.cli.app
import mb_trainer.cli.app
import mb_verify.cli.app

APPS = {
    "mb": mb_trainer.cli.app.app,
    "mb-config": mb_config.cli.app.app,
    "mb-plan": mb_plan.cli.app.app,
    "mb-data": mb_data.cli.app.app,
    "mb-checkpoint": mb_checkpoint.cli.app.app,
    "mb-metrics": mb_metrics.cli.app.app,
    "mb-launch": mb_launch.cli.app.app,
    "mb-verify": mb_verify.cli.app.app,
    "mb-guard": mb_guard.cli.app,
}


def command_pages() -> dict[str, str]:
    """Return a page for each program."""
    return {f"reference/commands/{name}.md": program_page(name, app) for name, app in APPS.items()}


def program_page(name: str, app: typer.Typer) -> str:
    """Return the page of a program: a table of its commands, then each with its parameters."""
    program = typer.main.get_command(app)
    commands = list(walk(program, name))
    lines = [f"# `{name}`", "", inspect.cleandoc(program.help or ""), "", "| command | |", "|---|---|"]
    for path, command in commands:
        first = inspect.cleandoc(command.help or "").partition("\n\n")[0]
        lines.append(f"| [`{path}`](#{anchor(path)}) | {cell(escaped(first))} |")
    for path, command in commands:
        lines += [
            "",
            f"## `{path}` {{#{anchor(path)}}}",
            "",
            escaped(inspect.cleandoc(command.help or "")),
            "",
        ]
        lines += ["```sh", *example(path, command), "```", "", *parameter_lines(command)]
    return "\n".join([*lines, ""])


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below one, with its complete name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from walk(child, f"{path} {name}")


def example(path: str, command: Any) -> list[str]:
    """Return the usage of a command, and its example."""
    arguments = [p.metavar or p.name.upper() for p in command.params if not p.opts[0].startswith("-")]
    usage = " ".join([path, *arguments, "[OPTIONS]"])
    epilog = (command.epilog or "").removeprefix("Example: ").replace("{source}", "gpt_tiny")
    if not epilog:
        return [f"# {usage}"]
    return [f"# {usage}", epilog if epilog.startswith("mb") else f"{path} {epilog}"]


def parameter_lines(command: Any) -> list[str]:
    """Return the table of arguments and options."""
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    if not shown:
        return []
    return ["| parameter | default | |", "|---|---|---|", *(parameter_row(item) for item in shown)]


def parameter_row(item: Any) -> str:
    """Return the row of an argument or option."""
    if item.opts[0].startswith("-"):
        names = " / ".join([*item.opts, *item.secondary_opts])
        name = names if getattr(item, "is_flag", False) else f"{names} {item.metavar or kind_of(item)}"
    else:
        name = item.metavar or item.name.upper()
    default = "" if item.default in (None, False, ()) or callable(item.default) else f"`{item.default}`"
    default = "required" if item.required else default
    return f"| `{name}` | {default} | {cell(escaped(item.help or ''))} |"


def kind_of(item: Any) -> str:
    """Return the name of an option's type."""
    kind = item.type_descriptor.annotation
    return str(getattr(kind, "__name__", kind)).upper()


def anchor(path: str) -> str:
    """Return the anchor of a command."""
    return path.replace(" ", "-")


def escaped(text: str) -> str:
    """Return a text whose characters Markdown would read as markup are escaped."""
    for character in "\\*_<>[]":
        text = text.replace(character, f"\\{character}")
    return text
