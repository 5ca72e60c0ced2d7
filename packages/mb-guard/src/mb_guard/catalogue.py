"""All records, in the order in which their patches are applied."""

from difflib import get_close_matches

from mb_guard.errors import UnknownFaultError
from mb_guard.fault import Fault
from mb_guard.faults import (
    activations,
    attention,
    batch_sizes,
    blocks,
    context_parallel,
    datasets,
    distributed,
    latent_attention,
    losses,
    megatron_lm,
    moe,
    moe_padding,
    mtp,
    optimizer,
    recomputation,
    rotary,
    schedule,
    transformer_engine,
    weight_updates,
)

FAULTS: tuple[Fault, ...] = (
    *latent_attention.FAULTS,
    *optimizer.FAULTS,
    *weight_updates.FAULTS,
    *distributed.FAULTS,
    *moe_padding.FAULTS,
    *moe.FAULTS,
    *mtp.FAULTS,
    *losses.FAULTS,
    *context_parallel.FAULTS,
    *activations.FAULTS,
    *attention.FAULTS,
    *blocks.FAULTS,
    *rotary.FAULTS,
    *recomputation.FAULTS,
    *schedule.FAULTS,
    *batch_sizes.FAULTS,
    *datasets.FAULTS,
    *megatron_lm.FAULTS,
    *transformer_engine.FAULTS,
)

_BY_ID = {fault.id: fault for fault in FAULTS}


def find_fault(id: str) -> Fault:
    """Return the record of an id.

    Raises:
        UnknownFaultError: there is no such fault.
    """
    if id not in _BY_ID:
        near = get_close_matches(id, _BY_ID, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(_BY_ID)}."
        raise UnknownFaultError(f"{id}: there is no fault of that id. {hint}")
    return _BY_ID[id]
