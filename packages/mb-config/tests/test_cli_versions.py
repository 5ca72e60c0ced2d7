"""Option `--version` of a program of several distributions."""

from typing import Annotated

import pytest

pytest.importorskip("typer", reason="needs mb-config[cli]")

import typer
from typer.testing import CliRunner

from mb_config.cli.versions import required_packages, version_option


def test_the_distributions_are_listed_in_order():
    app = typer.Typer()

    @app.callback(invoke_without_command=True)
    def main(
        _: Annotated[
            bool, version_option("mb-config", pattern="pyyaml", frameworks=("no-such-package",))
        ] = False,
    ) -> None:
        raise AssertionError

    lines = CliRunner().invoke(app, ["--version"]).stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["mb-config", "pyyaml"]
    assert lines[2:] == ["no-such-package not installed"]


def test_a_distribution_of_an_extra_is_not_required():
    assert required_packages("mb-config", pattern=r"typer|dataclasses[\w-]+") == ["dataclasses-json"]
