"""Bridges between the modules of a MIMO model: Megatron opens their groups with NCCL by name; here they are gloo's."""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch.distributed

BRIDGES = "megatron.core.pipeline_parallel.bridge_communicator"
COLOCATED = "megatron.core.models.mimo.comm.colocated_communicator"


class HostDistributed:
    """`torch.distributed` as those modules see it: what opens a group opens one of gloo, all else is as it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)

    def new_group(self, *args: Any, **kwargs: Any) -> Any:
        """Open a group of gloo, whatever backend is asked for."""
        return torch.distributed.new_group(*args, **{**kwargs, "backend": "gloo"})

    def new_subgroups_by_enumeration(self, *args: Any, **kwargs: Any) -> Any:
        """Open several groups of gloo, whatever backend is asked for."""
        open_groups: Any = torch.distributed.new_subgroups_by_enumeration  # has no types
        return open_groups(*args, **{**kwargs, "backend": "gloo"})


def stand_in_for_bridge(module: ModuleType) -> None:
    """Let a module open its groups with gloo."""
    module.__dict__["dist"] = HostDistributed()


def clear_bridge_groups() -> None:
    """Forget the groups that Megatron keeps for the next bridge, because the process group they are part of is gone."""
    module = sys.modules.get(BRIDGES)
    if module is not None:
        bridge = module.__dict__["BridgeCommunicator"]
        bridge._broadcast_pg_cache.clear()
        bridge._bridge_pg_cache.clear()


STAND_INS: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {BRIDGES: stand_in_for_bridge, COLOCATED: stand_in_for_bridge}
)
"""Module of Megatron -> what makes it run on the host, right after its import."""
