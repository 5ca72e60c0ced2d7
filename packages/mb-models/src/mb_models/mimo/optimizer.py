"""Optimizer of modules with per-module parallelism: one step, one gradient norm, and a state for checkpoints."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.models.mimo.optimizer import MimoOptimizer, ModuleOptimizerInfo
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer

from mb_models.mimo.groups import ModuleGroups

STEP = "common_step"
"""Megatron's key of the number of steps of all parameters of an optimizer."""


class MimoModulesOptimizer(MimoOptimizer):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's optimizer of several modules in float32, whose state each rank stores for its own modules.

    Tensors are stored under the names that they have if encoder and language model are one model. Everything else
    (parameter groups, the number of steps) is stored once for each module, because a rank without the module does not
    have it. The parameter indices of a group are omitted, since they differ between ranks.

    Attributes:
        chained_optimizers: optimizers of this rank's modules, in the order of `modules`.
        modules: module name of each of them.
    """

    def __init__(self, module_infos: dict[str, ModuleOptimizerInfo], config: OptimizerConfig) -> None:
        super().__init__(module_infos, config)
        active = [(name, info.optimizer) for name, info in module_infos.items() if info.optimizer is not None]
        parts = [(name, part) for name, optimizer in active for part in optimizer_parts(optimizer)]
        self.modules = [name for name, _ in parts]
        self.chained_optimizers = [part for _, part in parts]

    @classmethod
    def build(
        cls,
        wrapped: Mapping[str, torch.nn.Module],
        config: OptimizerConfig,
        *,
        groups: ModuleGroups,
        overrides: Mapping[Any, Any] | None,
    ) -> "MimoModulesOptimizer":
        """Build an optimizer for each wrapped module of this rank, under the module's process groups."""

        def info(name: str) -> ModuleOptimizerInfo:
            is_local = name in wrapped
            return ModuleOptimizerInfo(
                optimizer=get_megatron_optimizer(
                    config,
                    [wrapped[name]],
                    config_overrides=overrides,
                    use_gloo_process_groups=False,
                    pg_collection=groups.local[name],
                )
                if is_local
                else None,
                grid=groups.grids[name],
                pg_collection=groups.local[name] if is_local else None,
                is_active=is_local,
            )

        return cls({name: info(name) for name in groups.ranks}, config)

    def sharded_state_dict(
        self, model_sharded_state_dict: Mapping[str, Any], is_loading: bool = False, **kwargs: Any
    ) -> dict[Any, Any]:
        """Return the sharded state of this rank's optimizer, or a dict from index to state if there are several."""
        parts = []
        for number, (name, part) in enumerate(zip(self.modules, self.chained_optimizers, strict=True)):
            groups = self.module_infos[name].pg_collection
            metadata = {**(kwargs.get("metadata") or {}), "dp_cp_group": groups.dp_cp}
            state = part.sharded_state_dict(model_sharded_state_dict, is_loading, metadata=metadata)
            plain = {
                "param_groups": [{**group, "params": []} for group in state["param_groups"]],
                STEP: state["state"].pop(STEP, None),
            }
            key = f"optimizer.mimo.{name}.{number - self.modules.index(name)}"
            # the module's rank (0, 0, 0) writes the object, the others are replicas of it
            copies = (groups.tp.rank(), groups.pp.rank(), groups.dp.rank())
            parts.append({**state, "param_groups": ShardedObject(key, plain, (1,), (0,), replica_id=copies)})
        return parts[0] if len(parts) == 1 else dict(enumerate(parts))

    def state_dict(self) -> dict[Any, Any]:
        """Return the state of this rank's optimizer, or a dict from index to state if there are several."""
        parts = [part.state_dict() for part in self.chained_optimizers]
        return parts[0] if len(parts) == 1 else dict(enumerate(parts))

    def load_state_dict(self, state_dict: Mapping[Any, Any]) -> None:
        """Load a state with the structure that `sharded_state_dict` returns."""
        single = len(self.chained_optimizers) == 1
        for number, part in enumerate(self.chained_optimizers):
            part_state = state_dict if single else state_dict[number]
            plain = part_state["param_groups"]
            current_groups = part.optimizer.state_dict()["param_groups"]
            groups = [
                {**group, "params": current["params"]}
                for group, current in zip(plain["param_groups"], current_groups, strict=True)
            ]
            step = {} if plain[STEP] is None else {STEP: plain[STEP]}
            part.load_state_dict(
                {**part_state, "state": {**part_state["state"], **step}, "param_groups": groups}
            )


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the members of Megatron's chained optimizer, or the single optimizer."""
    return list(optimizer.chained_optimizers) if isinstance(optimizer, ChainedOptimizer) else [optimizer]
