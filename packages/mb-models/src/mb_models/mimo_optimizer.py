"""The optimizers of modules with layouts of their own: one step, one gradient norm, and a state that can be stored."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.models.mimo.optimizer import MimoOptimizer, ModuleOptimizerInfo
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer

from mb_models.mimo_groups import ModuleGroups

STEP = "common_step"
"""Megatron's name for the number of steps that all parameters of an optimizer have made."""


class MimoModulesOptimizer(MimoOptimizer):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's optimizer of several modules in float32, whose state each rank stores for its own modules.

    Tensors are stored under the names that they have where encoder and language model are one model, everything else
    (parameter groups, the number of steps) once for each module, because a rank without the module would not know it.
    Which parameters a group has is left out, since they have other numbers on each rank.

    Attributes:
        chained_optimizers: those of this rank's modules, in the order of `modules`.
        modules: for each of them, the name of its module.
    """

    def __init__(self, module_infos: dict[str, ModuleOptimizerInfo], config: OptimizerConfig) -> None:
        super().__init__(module_infos, config)
        own = [(name, info.optimizer) for name, info in module_infos.items() if info.optimizer is not None]
        parts = [(name, part) for name, whole in own for part in optimizer_parts(whole)]
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
        """Build an optimizer for each wrapped module of this rank, under the module's own groups."""

        def info(name: str) -> ModuleOptimizerInfo:
            here = name in wrapped
            return ModuleOptimizerInfo(
                optimizer=get_megatron_optimizer(
                    config,
                    [wrapped[name]],
                    config_overrides=overrides,
                    use_gloo_process_groups=False,
                    pg_collection=groups.local[name],
                )
                if here
                else None,
                grid=groups.grids[name],
                pg_collection=groups.local[name] if here else None,
                is_active=here,
            )

        return cls({name: info(name) for name in groups.ranks}, config)

    def sharded_state_dict(
        self, model_sharded_state_dict: Mapping[str, Any], is_loading: bool = False, **kwargs: Any
    ) -> dict[Any, Any]:
        """Return what this rank stores or asks for: the state of its optimizer, or of each under its number."""
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
            copies = (groups.tp.rank(), groups.pp.rank(), groups.dp.rank())
            parts.append({**state, "param_groups": ShardedObject(key, plain, (1,), (0,), replica_id=copies)})
        return parts[0] if len(parts) == 1 else dict(enumerate(parts))

    def state_dict(self) -> dict[Any, Any]:
        """Return the state of this rank's optimizer, or of each under its number."""
        parts = [part.state_dict() for part in self.chained_optimizers]
        return parts[0] if len(parts) == 1 else dict(enumerate(parts))

    def load_state_dict(self, state_dict: Mapping[Any, Any]) -> None:
        """Take over what `sharded_state_dict` has asked for and a checkpoint has answered."""
        alone = len(self.chained_optimizers) == 1
        for number, part in enumerate(self.chained_optimizers):
            own = state_dict if alone else state_dict[number]
            plain = own["param_groups"]
            here = part.optimizer.state_dict()["param_groups"]
            groups = [
                {**group, "params": place["params"]}
                for group, place in zip(plain["param_groups"], here, strict=True)
            ]
            step = {} if plain[STEP] is None else {STEP: plain[STEP]}
            part.load_state_dict({**own, "state": {**own["state"], **step}, "param_groups": groups})


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the optimizers inside Megatron's chain of some, or the one."""
    return list(optimizer.chained_optimizers) if isinstance(optimizer, ChainedOptimizer) else [optimizer]
