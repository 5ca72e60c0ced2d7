"""Settings that `mb report` compares the settings of a run with: those of its recipe."""

import re
from pathlib import Path

from mb_metrics import BaselineConfiguration
from mb_metrics.run_folder import RunFolder
from mb_trainer.registry import REGISTRY
from mb_trainer.run_folder import NOT_SETTINGS

_RECIPE_IN_LOG = re.compile(r"^([\w.-]+): .* M parameters,", re.MULTILINE)
_CHARACTERS_TO_SEARCH = 20_000


def find_baseline(run: Path) -> BaselineConfiguration | None:
    """Return the settings of the recipe that the log of a run folder names; None if it names none."""
    log = RunFolder(run).log
    if not log.is_file():
        return None
    with log.open(errors="replace") as text:
        names = _RECIPE_IN_LOG.findall(text.read(_CHARACTERS_TO_SEARCH))
    name = next((name for name in names if name in REGISTRY.recipes), None)
    if name is None:
        return None
    settings = REGISTRY.recipes[name].build().to_dict()
    return BaselineConfiguration(name=f"the recipe {name}", settings=settings, ignored=NOT_SETTINGS)
