"""Meaningless numbers in every numeric field: an error message or a result, never a traceback."""

from dataclasses import fields, is_dataclass

import pytest

from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_trainer.commands.checks import check
from mb_trainer.commands.errors import reported
from mb_trainer.requests import read_request


def number_fields(recipe, *, only=None):
    """Return the paths of the numeric fields of a recipe."""
    config = read_request([recipe], files=[]).config
    for section in fields(config):
        values = getattr(config, section.name)
        if is_dataclass(values) and only in (None, section.name):
            for item in fields(values):
                if type(getattr(values, item.name)) in (int, float):
                    yield f"{section.name}.{item.name}"


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    ("recipe", "only"),
    [("gpt_tiny", None), ("hybrid_tiny", "model"), ("t5_tiny", "model"), ("mimo_tiny", "model")],
)
def test_an_odd_number_is_an_answer(recipe, only, value, tmp_path):
    for path in number_fields(recipe, only=only):
        given = CommandInput(arguments=[recipe, f"{path}={value}"], out=tmp_path)
        code = reported(lambda given=given: check(given, target=TargetMachine(world_size=1), as_json=False))
        assert code in (0, 1, 2), path
