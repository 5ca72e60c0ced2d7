"""Gloo process groups for bridges between modules of a MIMO model, for which Megatron requests NCCL by name."""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch.distributed

BRIDGES = "megatron.core.pipeline_parallel.bridge_communicator"
COLOCATED = "megatron.core.models.mimo.comm.colocated_communicator"


class HostDistributed:
    """Proxy of `torch.distributed` that creates gloo groups; all other attributes are unchanged."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)

    def new_group(self, *args: Any, **kwargs: Any) -> Any:
        """Create a gloo group, whatever backend is requested."""
        return torch.distributed.new_group(*args, **{**kwargs, "backend": "gloo"})

    def new_subgroups_by_enumeration(self, *args: Any, **kwargs: Any) -> Any:
        """Create several gloo groups, whatever backend is requested."""
        open_groups: Any = torch.distributed.new_subgroups_by_enumeration  # untyped in torch
        return open_groups(*args, **{**kwargs, "backend": "gloo"})


def stand_in_for_bridge(module: ModuleType) -> None:
    """Make a module create its groups with gloo."""
    module.__dict__["dist"] = HostDistributed()


def clear_bridge_groups() -> None:
    """Clear Megatron's cache of bridge groups, which are invalid once the default process group is destroyed."""
    module = sys.modules.get(BRIDGES)
    if module is not None:
        bridge = module.__dict__["BridgeCommunicator"]
        bridge._broadcast_pg_cache.clear()
        bridge._bridge_pg_cache.clear()


STAND_INS: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {BRIDGES: stand_in_for_bridge, COLOCATED: stand_in_for_bridge}
)
"""Megatron module -> function that adapts it to the CPU, right after its import."""
