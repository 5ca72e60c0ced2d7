"""`mb plan`: parameters, memory, work, checkpoint size and predicted time of a run."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mb_config import ConfigError
from mb_config.trainer_api import CommandInput, TargetMachine, counted
from mb_plan import GPU_MEMORY, PlanError, Prediction, ResourcePlan, make_plan
from mb_plan.trainer_api import (
    SavePlan,
    SweptPoint,
    fitting_changes,
    plan_saves,
    print_fitting,
    print_plan,
    print_prediction,
    print_saves,
    try_predict,
    write_memory_chart,
    write_step_chart,
)
from mb_schema.exit_codes import DONE, FAILURE
from mb_schema.rules import Problem
from mb_trainer.config import ConfigContainer
from mb_trainer.requests import command_checks, embedding_rows, examine_request, smallest_world_of


def plan(
    given: CommandInput,
    *,
    target: TargetMachine,
    chart: Path | None,
    explained: bool = False,
    write_gibs: float | None = None,
    as_json: bool,
) -> int:
    """Print the resources that a run needs. Return 1 if rules reject it, or if it does not fit the GPU.

    Args:
        given: Recipe or file, and overrides.
        target: Machines; without a number of processes, the smallest one that holds the model.
        chart: SVG file for a memory chart; with `explained` the parts of the step are drawn next to it.
        explained: Print the parts of the predicted step.
        write_gibs: GiB/s that all ranks together write to the folder of checkpoints; None: an assumption.
        as_json: Print one JSON object.

    Raises:
        ConfigError: The configuration cannot be resolved.
        PlanError: The model's sizes cannot be counted.
    """
    size = target.world_size or smallest_world_of(given)
    examination = examine_request(given, target=replace(target, world_size=size))
    request, result = examination.request, examination.result
    config, target = request.config, replace(examination.target, world_size=target.world_size)
    if not result.resolved:
        raise ConfigError(result.errors or result.problems)
    planned = _planned(config, result.errors, world_size=size)
    fits = planned.fits(target.gpu)
    gpu = target.gpu
    speed, unpredicted = (None, "") if gpu is None else try_predict(config.sections(), planned, gpu=gpu)
    if chart is not None:
        write_memory_chart(chart, planned, title=f"{request.name}: memory per GPU", gpu=target.gpu)
        if explained and speed is not None:
            step = chart.with_name(f"{chart.stem}-step.svg")
            write_step_chart(step, speed, title=f"{request.name}: predicted step")
    saves = _planned_saves(config, planned, speed, write_gibs=write_gibs)
    fitting = _accepted_change(given, config, planned, target=target)
    if as_json:
        further = {"fits_with": fitting, "predicted": speed, "saves": saves}
        data = {name: None if part is None else part.to_dict() for name, part in further.items()}
        print(json.dumps({**planned.to_dict(), "gpu": target.gpu, "fits": fits, **data}, indent=2))
    else:
        print_plan(planned, name=request.name, gpu=target.gpu)
        if speed is not None:
            print_prediction(speed, precision_gpu=target.gpu or "", explained=explained)
        if saves is not None:
            print_saves(saves)
        if fits is False:
            print_fitting(fitting)
    for line in _remarks(
        planned, problems=len(result.errors), gpu=target.gpu, assumed=target.world_size is None
    ):
        print(line, file=sys.stderr)
    notes = [f"the time of a step is not predicted: {unpredicted}"] if unpredicted else []
    for note in (*notes, *(() if speed is None else speed.notes)):
        print(f"note: {note}", file=sys.stderr)
    return FAILURE if result.errors or fits is False else DONE


MOST_PROPOSALS = 5
"""Changes that are checked by the rules, each of which takes about 0.2 s."""


def _accepted_change(
    given: CommandInput, config: ConfigContainer, planned: ResourcePlan, *, target: TargetMachine
) -> SweptPoint | None:
    """Return the cheapest change with which a run that does not fit fits, and that no rule rejects; None: not found."""
    if planned.fits(target.gpu) is not False:
        return None
    proposals = fitting_changes(
        config.sections(), planned, gpu=target.gpu or "", vocab_size=embedding_rows(config)
    )
    rejected: list[set[str]] = []
    for proposal in proposals:
        settings = set(proposal.settings)
        # Settings that a rule rejects are also rejected with further ones.
        if any(known <= settings for known in rejected):
            continue
        changed = replace(given, arguments=[*given.arguments, *proposal.settings])
        result = examine_request(changed, target=replace(target, world_size=planned.world_size)).result
        if result.resolved and not result.errors:
            return proposal
        rejected.append(settings)
        if len(rejected) == MOST_PROPOSALS:
            return None
    return None


def _planned(
    config: ConfigContainer,
    errors: Sequence[Problem],
    *,
    world_size: int,
) -> ResourcePlan:
    """Plan a resolved configuration.

    Raises:
        ConfigError: The model's sizes depend on data that cannot be read; contains the errors about that data.
        PlanError: The model's sizes cannot be counted.
    """
    sections = config.sections()
    try:
        return make_plan(sections, world_size=world_size, vocab_size=embedding_rows(config))
    except PlanError:
        read = command_checks().data_facts
        unread = [problem for problem in errors if read.intersection(problem.fields)]
        if unread:  # without the tokenizer the size of the embedding is unknown
            raise ConfigError(unread) from None
        raise


def _planned_saves(
    config: ConfigContainer, planned: ResourcePlan, speed: Prediction | None, *, write_gibs: float | None
) -> SavePlan | None:
    """Return the checkpoints of the run, whose interval depends on the time of a step; None if it is not known."""
    if speed is None:
        return None
    written = None if write_gibs is None else write_gibs * 2**30
    return plan_saves(config.sections(), planned, step_seconds=speed.step_seconds, write_bytes=written)


def _remarks(planned: ResourcePlan, *, problems: int, gpu: str | None, assumed: bool) -> Iterator[str]:
    """Yield the remarks that follow the statistics, on stderr."""
    if problems:
        yield f"{counted(problems, 'problem')}, see mb check: a run would be rejected"
    if assumed:
        yield f"planned for the fewest processes that hold the model, {planned.world_size}: pass --world-size"
    for note in planned.notes:
        yield f"note: {note}"
    if gpu is not None and gpu not in GPU_MEMORY:
        yield f"note: the memory of {gpu} is not known; known are {', '.join(GPU_MEMORY)}"
