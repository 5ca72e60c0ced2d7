"""Settings that `mb report` compares the settings of a run with: those of its recipe."""

from collections.abc import Iterable
from pathlib import Path

from mb_metrics import BaselineConfiguration, read_event_rows
from mb_metrics.trainer_api import RunFolder, folder_of_metrics
from mb_trainer.registry import REGISTRY
from mb_trainer.run.run_folder import NOT_SETTINGS


def baselines(runs: Iterable[Path]) -> dict[Path, BaselineConfiguration]:
    """Return the settings of the recipes of the runs that have one, by the run folder."""
    found = {folder: find_baseline(folder) for folder in map(folder_of_metrics, runs)}
    return {folder: baseline for folder, baseline in found.items() if baseline is not None}


def find_baseline(run: Path) -> BaselineConfiguration | None:
    """Return the settings of the recipe with which the run in a folder started; None if there is none of this name."""
    names = [row["recipe"] for row in read_event_rows(RunFolder(run).events) if "recipe" in row]
    if not names or names[0] not in REGISTRY.recipes:
        return None
    settings = REGISTRY.recipes[names[0]].build().to_dict()
    return BaselineConfiguration(name=f"the recipe {names[0]}", settings=settings, ignored=NOT_SETTINGS)
