"""The number of model replicas, which follows from the number of processes and the parallel sizes of the model."""

from __future__ import annotations

from math import prod

from mb_schema.rule_kinds import facts_rule
from mb_schema.rules import Rule, rules_in

SIZES = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
)


def data_parallel_size(world: int, tp: int | None, pp: int | None, cp: int | None) -> int | None:
    """Return the number of model replicas, world / (tp x pp x cp), or None if that is not an integer of at least 1.

    A size of None counts as 1. Expert parallelism is not a factor, because it uses the data-parallel ranks.
    """
    sizes = [1 if size is None else size for size in (tp, pp, cp)]
    if min(sizes) < 1 or world < 1 or world % prod(sizes) != 0:
        return None
    return world // prod(sizes)


def _processes(world: int) -> str:
    return "1 process is" if world == 1 else f"{world} processes are"


@facts_rule(
    "V030",
    why="each replica of the model uses tp x pp x cp processes",
    fix="Change the number of processes or the parallel sizes.",
    fails={"world_size": 12, "tp": 2, "pp": 2, "cp": 2},
    passes={"world_size": 16},
)
def _uneven_replicas(world_size, tp, pp, cp):
    if data_parallel_size(world_size, tp, pp, cp) is not None:
        return None
    return f"{_processes(world_size)} not a multiple of tp x pp x cp = {tp or 1} x {pp or 1} x {cp or 1}"


RULES: tuple[Rule, ...] = rules_in(globals())
