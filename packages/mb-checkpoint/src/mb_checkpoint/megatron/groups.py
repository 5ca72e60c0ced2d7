"""Process groups of a checkpoint, from Megatron Core or passed by the caller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint.context import GroupLike


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointGroups:
    """Process groups that determine the part of the state that this rank stores."""

    tp: GroupLike
    pp: GroupLike
    dp_cp: Any
    expt_dp: Any | None
    """Ranks that hold the same experts; None if that group was not created."""
    ep_size: int
    ep_rank: int
    dp_rank: int
    dp_size: int
    is_first_of_replica: bool
    """Whether this rank is the first of those that work on the same data."""
    module_layouts: Mapping[str, Mapping[str, int]] | None = None
    """Module -> its parallel sizes, if modules have separate ranks; the groups above then belong to no module."""

    @classmethod
    def of(cls, pg_collection: Any | None) -> "CheckpointGroups":
        """Create from a collection, or from Megatron's own groups if there is none."""
        names = ["tp", "pp", "dp", "cp", "dp_cp", "ep", "expt_dp"]
        process_groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=names)
        expert, data, context = (getattr(process_groups, name, None) for name in ("ep", "dp", "cp"))
        firsts = [process_groups.tp.rank(), process_groups.pp.rank(), context.rank() if context else 0]
        return cls(
            tp=process_groups.tp,
            pp=process_groups.pp,
            dp_cp=process_groups.dp_cp,
            expt_dp=getattr(process_groups, "expt_dp", None),
            ep_size=expert.size() if expert else 1,
            ep_rank=expert.rank() if expert else 0,
            dp_rank=(data or process_groups.dp_cp).rank(),
            dp_size=(data or process_groups.dp_cp).size(),
            is_first_of_replica=not any(firsts),
            module_layouts=getattr(process_groups, "module_layouts", None),
        )

    def sharing(self, kind: str) -> Any:
        """Return the ranks that share the writing or reading: `dp` with context-parallel, or `ep_dp`.

        Raises:
            ValueError: The requested group is not in the collection.
        """
        if kind == "dp":
            return self.dp_cp
        if self.expt_dp is None:
            raise ValueError(
                "checkpoint.ckpt_fully_parallel_*_process_group: ep_dp, and the process groups that were passed have "
                "no expt_dp. Pass it, or set it to dp."
            )
        return self.expt_dp

    def layout(self, model: Sequence[Any]) -> dict[str, int]:
        """Return the sizes that must match for a layout-bound optimizer state to be readable.

        If modules have separate ranks, that is the full layout of each, as `<module>.<size>`.
        """
        if self.module_layouts is not None:
            sizes = {
                f"{module}.{name}": size
                for module, module_layout in self.module_layouts.items()
                for name, size in module_layout.items()
            }
            return {**sizes, "model_chunks": len(model)}
        return {
            "tensor_model_parallel_size": self.tp.size(),
            "pipeline_model_parallel_size": self.pp.size(),
            "expert_model_parallel_size": self.ep_size,
            "model_chunks": len(model),
        }

    def described(self, model: Sequence[Any]) -> dict[str, int]:
        """Return the layout to record in the manifest: `layout`, and the sizes that may differ."""
        sizes = {"data_parallel_size": self.dp_cp.size()} if self.module_layouts is None else {}
        return {**self.layout(model), **sizes, "world_size": dist.get_world_size()}
