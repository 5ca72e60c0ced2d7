"""Tasks of lm-evaluation-harness, from files or by name, and their metrics. Requires lm_eval (extra `lm-eval`)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group
from lm_eval.defaults import DEFAULT_OTHER_SEED as SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from yaml import YAMLError

from mb_models.errors import ModelsError
from mb_models.evaluation.lm_eval import TrainedLM

SUFFIXES = (".yaml", ".yml")


class TaskError(ModelsError, ValueError):
    """A task that is unknown, or that cannot be loaded."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """How tasks are evaluated."""

    limit: int | None = None
    """Documents of each task; None: all."""
    num_fewshot: int | None = None
    """Solved examples in each prompt; None: as the task sets it."""
    chat: bool = False
    """Apply the chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetric:
    """Value of a metric of a task or of a group of tasks."""

    task: str
    metric: str
    """Name, with that of the filter of the answers if there is one: `exact_match (strict)`."""
    value: float | str
    stderr: float | None
    documents: int | None
    """Number of documents of a task; None for a group."""

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Cells of the table of results."""
        value = f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)
        stderr = "-" if self.stderr is None else f"{self.stderr:.4g}"
        return self.task, self.metric, value, stderr, "" if self.documents is None else f"{self.documents:,}"


def load_tasks(names: Sequence[str], *, manager: Any = None) -> list[Any]:
    """Return the tasks of files (*.yaml), and of names or patterns of tasks that are installed with lm_eval.

    The code of a task runs while it is loaded and evaluated: its functions, and its templates.

    Args:
        names: files, names and patterns.
        manager: `lm_eval.tasks.TaskManager` that knows the names; None: that of the installed tasks, which reads them
            for some seconds.

    Raises:
        TaskError: a file does not exist or is not a task, a name is unknown, or the data of a task cannot be read.
    """
    # warnings about metrics with default settings, of which there are two for each
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    files = [name for name in names if name.endswith(SUFFIXES)]
    for name in files:
        if not Path(name).is_file():
            raise TaskError(f"--tasks: no such file ({name}). Correct its path.")
    manager = manager or TaskManager(include_defaults=len(files) < len(names))
    tasks: list[Any] = []
    for name in names:
        matches = [name] if name in files else manager.match_tasks([name])
        if not matches:
            raise TaskError(
                f"--tasks: {name} is not a task that is installed with lm_eval. Correct the name, or pass the path of "
                "a *.yaml file."
            )
        for match in matches:
            try:
                loaded = manager.load([match])
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                ImportError,
                YAMLError,
            ) as error:
                # lm_eval and datasets raise any of these for wrong files and missing data
                raise TaskError(
                    f"--tasks: {match} cannot be loaded ({type(error).__name__}: {error}). Correct the task, or the "
                    "path of its data, which is relative to the current folder."
                ) from error
            tasks += loaded["groups"].values() or loaded["tasks"].values()
    return tasks


def evaluate_tasks(lm: TrainedLM, tasks: Sequence[Any], settings: TaskSettings) -> dict[str, Any]:
    """Return the results as `lm_eval.evaluate` does, on every rank. Collective.

    Raises:
        TaskError: `num_fewshot` is set, and a task does not permit it.
    """
    single = [
        subtask for task in tasks for subtask in (task.get_all_tasks() if isinstance(task, Group) else [task])
    ]
    for task in single:
        _set_examples(task, settings.num_fewshot)
    groups = [group for task in tasks if isinstance(task, Group) for group in (task, *task.get_all_groups())]
    results: dict[str, Any] = evaluate(
        lm,
        {
            "tasks": {task.task_name: task for task in single},
            "groups": {group.name: group for group in groups},
        },
        limit=settings.limit,
        apply_chat_template=settings.chat,
        fewshot_as_multiturn=settings.chat,
        log_samples=False,
    )
    return {**results, "lm_eval_version": version("lm_eval")}


def _set_examples(task: Any, number: int | None) -> None:
    """Set the solved examples of the prompts of a task, and the seed by which they are chosen."""
    fixed = task.get_config("num_fewshot")
    if number and fixed == 0:
        raise TaskError(
            f"--num-fewshot: the task {task.task_name} sets num_fewshot: 0, so that its prompts have no examples "
            f"({number}). Leave out the option, or remove the line from the task."
        )
    if number is not None or fixed is None:
        task.set_config(key="num_fewshot", value=number or 0)
    task.set_fewshot_seed(seed=SEED)


def metrics_of(results: Mapping[str, Any]) -> list[TaskMetric]:
    """Return the metrics in the results of lm_eval, in the order of its tasks."""
    scores = []
    for task, values in results["results"].items():
        samples = results.get("n-samples", {}).get(task)
        for key, value in values.items():
            metric, separator, filter_ = key.partition(",")
            if not separator or metric.endswith("_stderr"):
                continue
            stderr = values.get(f"{metric}_stderr,{filter_}")
            scores.append(
                TaskMetric(
                    task=task,
                    metric=metric if filter_ == "none" else f"{metric} ({filter_})",
                    value=value,
                    stderr=stderr if isinstance(stderr, float) else None,
                    documents=None if samples is None else samples["effective"],
                )
            )
    return scores
