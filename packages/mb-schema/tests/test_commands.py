from typing import Annotated

import pytest

typer = pytest.importorskip("typer", reason="needs mb-schema[cli]")

from typer.testing import CliRunner  # noqa: E402

from mb_schema.commands import version_option  # noqa: E402


def printed(option):
    app = typer.Typer()

    @app.callback(invoke_without_command=True)
    def main(_: Annotated[bool, option] = False) -> None:
        raise AssertionError

    return [line.split() for line in CliRunner().invoke(app, ["--version"]).stdout.splitlines()]


def test_a_program_prints_its_version():
    [[name, version]] = printed(version_option("typer"))
    assert (name, version) == ("typer", typer.__version__)


def test_distributions_are_listed_in_order_without_those_of_an_extra():
    option = version_option("typer", pattern=r"click|rich|no-match", frameworks=("no-such-package",))
    lines = printed(option)
    assert [line[0] for line in lines] == ["typer", *(line[0] for line in lines[1:-1]), "no-such-package"]
    assert {"rich"} <= {line[0] for line in lines} <= {"typer", "click", "rich", "no-such-package"}
    assert lines[-1] == ["no-such-package", "not", "installed"]


def test_what_only_an_extra_requires_is_left_out():
    names = [line[0] for line in printed(version_option("mb-schema", pattern=r"typer|pyyaml"))]
    assert names == ["mb-schema"]
