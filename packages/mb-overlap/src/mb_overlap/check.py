"""Everything that is wrong with the overlap of a configuration, at once."""

from collections.abc import Mapping

from mb_overlap.rules import CONFLICT_RULES
from mb_overlap.violations import Conflict, check_rules


def find_conflicts(
    model_config: object,
    optimizer_config: object | None = None,
    ddp_config: object | None = None,
    *,
    comm_overlap: object | None = None,
    facts: Mapping[str, object] | None = None,
) -> list[Conflict]:
    """Return everything that is wrong with the overlap of a configuration, and write nothing.

    Finds what trains wrongly (two interleaved stages that batch their sends), what Megatron Core would refuse when
    the model is built, what Transformer Engine would refuse when it starts, and what costs the overlap silently.

    Args:
        model_config: any object with Megatron's field names, as `CommOverlapConfig.setup` takes it.
        optimizer_config: the same, of the optimizer.
        ddp_config: the same, of DDP.
        comm_overlap: the section of wishes, where it has not been set up yet; None where the other sections already
            hold what will run.
        facts: what no section holds; a rule is left out where its facts are not known. `world_size`, `env` (the
            variables of the processes), `gpu` (short name), `transformer_engine` (bool),
            `transformer_engine_version`, `torch_version`.
    """
    resolved = {"resolved": True} if comm_overlap is None else {}
    return check_rules(
        CONFLICT_RULES,
        {
            "model": model_config,
            "optimizer": optimizer_config,
            "ddp": ddp_config,
            "comm_overlap": comm_overlap,
            "facts": {**resolved, **(facts or {})},
        },
    )
