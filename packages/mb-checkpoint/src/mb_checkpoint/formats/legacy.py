"""Megatron-LM's legacy layout `torch`: a pickle for each model-parallel rank, `mp_rank_TT[_PPP][_EEE]`.

A rank reads the file of its own position: the tensor-, pipeline- and expert-parallel sizes must be those of the run
that wrote it. Pickles that name more than tensors, builtins and classes that Megatron Core registers as safe are only
read below a trusted folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.utils import unwrap_model

from mb_checkpoint import mcore
from mb_checkpoint.collectives import gather, read_on_all_ranks
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.formats.layout import LEGACY_FILE, LEGACY_OPTIMIZER, legacy_ranks
from mb_checkpoint.formats.unpickling import load_object
from mb_checkpoint.load.restore import StateRestorer
from mb_checkpoint.load.shape_check import check_shapes
from mb_checkpoint.megatron import main_params
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.model import load_model_sections, section_names
from mb_checkpoint.megatron.optimizer import (
    distributed_parts,
    has_state,
    load_optimizer_section,
    parameter_groups,
)
from mb_checkpoint.state import extra_state

_LARGE = ("model", "optimizer", mcore.RNG_KEY)
_FUSED_NORMS = (
    ("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
    ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
)
"""Names of norms in Megatron's own layers, and in those of Transformer Engine, which fuses them with a projection."""
_EXTRA = "_extra_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyState:
    """State of this rank."""

    folder: Path
    """Folder of the rank's files."""
    values: Mapping[str, Any]

    @property
    def contents(self) -> mcore.CheckpointContents:
        """Contents without tensors."""
        common = {name: value for name, value in self.values.items() if not name.startswith(_LARGE)}
        return mcore.CheckpointContents(common=common, shapes=None, objects=frozenset())


def read_legacy(path: Path, model: Sequence[Any], groups: CheckpointGroups) -> LegacyState:
    """Read the file of this rank. Collective.

    Raises:
        CheckpointLayoutError: The parallel sizes differ.
        CheckpointReadError: A rank could not read its file, or the folder is not trusted.
    """
    run_layout = groups.layout(model)
    folder = path / rank_folder(groups)
    lacking = [name for name in gather("" if (folder / LEGACY_FILE).is_file() else folder.name) if name]
    if lacking:
        stored_names = ", ".join(folder.name for folder in legacy_ranks(path))
        raise _other_layout(
            path, f"has files of {stored_names}, and this run needs those of {', '.join(lacking)}, too"
        )

    def read() -> LegacyState:
        with (folder / LEGACY_FILE).open("rb") as stream:
            return LegacyState(folder=folder, values=load_object(stream, path=folder / LEGACY_FILE))

    state = read_on_all_ranks(path, read)
    stored = state.contents.layout
    if stored is not None and dict(stored) != run_layout:
        raise _other_layout(path, f"was written with {dict(stored)} and this run has {run_layout}")
    return state


def rank_folder(groups: CheckpointGroups) -> str:
    """Return the name of the folder of this rank."""
    name = f"mp_rank_{groups.tp.rank():02d}"
    name += f"_{groups.pp.rank():03d}" if groups.pp.size() > 1 else ""
    return name + (f"_{groups.ep_rank:03d}" if groups.ep_size > 1 else "")


def _other_layout(path: Path, problem: str) -> CheckpointLayoutError:
    return CheckpointLayoutError(
        f"{path}: {problem}, because a rank reads the whole file of its position in the legacy layout. Use the same "
        "tensor-, pipeline- and expert-parallel sizes, or convert it with Megatron-LM (--ckpt-convert-format "
        "torch_dist --ckpt-convert-save DIR)."
    )


class LegacyRestorer(StateRestorer):
    """Load of a rank's pickle: weights, optimizer, schedule and random states."""

    def __init__(self, *args: Any, state: LegacyState, **options: Any) -> None:
        super().__init__(*args, **options)
        self._state = state

    def run(self) -> list[str]:
        """Compare and restore; return notes on the state that was left unchanged. Collective."""
        ctx = self._ctx
        optimizer_of_run: Any = ctx.optimizer
        weights = read_on_all_ranks(self._path, self._matched_weights)
        with_optimizer = self._wants_optimizer()
        self._compare_schedules()
        if with_optimizer:
            optimizer = read_on_all_ranks(self._path, lambda: self._matched_optimizer(weights))
        names = section_names(ctx.model)
        model_sections = {name: values for name, (values, _) in zip(names, weights, strict=True)}
        with extra_state.permitted():
            load_model_sections(ctx.model, self._without_code(model_sections), strict=False)
        if with_optimizer:
            load_optimizer_section(optimizer_of_run, self._fitted(optimizer))
            if distributed_parts(optimizer_of_run):
                optimizer_of_run.load_parameter_state(str(self._state.folder / LEGACY_OPTIMIZER))
        elif has_state(ctx.optimizer):
            main_params.refresh(ctx.optimizer, ctx.model, None)
        self._put_back_scheduler(self._state.values)
        if self._wants_rng():
            self._restore_rng(self._state.values[mcore.RNG_KEY])
        return self._notes

    def _matched_weights(self) -> list[tuple[dict[str, Any], bool]]:
        """Return the weights of each chunk under its own names, and whether their order is that of the checkpoint.

        Raises:
            CheckpointShapeError: The model has another shape.
        """
        chunks = unwrap_model(list(self._ctx.model))
        names = section_names(self._ctx.model)
        return [
            matched(self._state.values[name], chunk.state_dict(), path=self._path, strict=self._ctx.strict)
            for name, chunk in zip(names, chunks, strict=True)
        ]

    def _matched_optimizer(self, weights: Sequence[tuple[Any, bool]]) -> Any:
        """Return the stored optimizer state, whose parameters are known by their order only.

        Raises:
            CheckpointLayoutError: The order is another one, or a group has other parameters.
        """
        stored = self._state.values["optimizer"]
        run_groups = parameter_groups(self._ctx.optimizer)
        sizes = [[len(group["params"]) for group in part] for part in run_groups]
        stored_sizes = [[len(group.get("params", ())) for group in part] for part in groups_in(stored)]
        distributed = bool(distributed_parts(self._ctx.optimizer))
        if not all(ordered for _, ordered in weights) or (stored_sizes != sizes and not distributed):
            raise CheckpointLayoutError(
                f"{self._path}: its optimizer state has other parameters or another order of them (groups of "
                f"{stored_sizes}, here {sizes}), as with layers of Transformer Engine in one of the runs and "
                "Megatron's own in the other. Set model.transformer_impl as in that run, or "
                "checkpoint.load_optim=false."
            )
        return dict(enumerate(stored)) if isinstance(stored, list) else stored

    def _wants_optimizer(self) -> bool:
        if not super()._wants_optimizer():
            return False
        has_file = (self._state.folder / LEGACY_OPTIMIZER).is_file()
        if has_file != bool(distributed_parts(self._ctx.optimizer)):
            raise CheckpointLayoutError(
                f"{self._path}: {'has' if has_file else 'has no'} {LEGACY_OPTIMIZER}, because its run used "
                f"{'the' if has_file else 'no'} distributed optimizer, whose state has another form. Set "
                f"ddp.use_distributed_optimizer={str(has_file).lower()}, or checkpoint.load_optim=false."
            )
        return True

    def _has_optimizer(self) -> bool:
        return "optimizer" in self._state.values

    def _has_own_rng(self) -> bool:
        return mcore.RNG_KEY in self._state.values


def groups_in(stored: Any) -> list[Sequence[Mapping[str, Any]]]:
    """Return the parameter groups of each optimizer in a stored state; several optimizers are a list."""
    parts = stored if isinstance(stored, list) else [stored]
    return [part.get("optimizer", part)["param_groups"] for part in parts]


def matched(
    stored: Mapping[str, Any], model_state: Mapping[str, Any], *, path: Path, strict: bool
) -> tuple[dict[str, Any], bool]:
    """Return stored weights under the names of a model, and whether the two have the same names.

    Norms that one of them fuses with the following projection are renamed. Empty extra states are left out.

    Raises:
        CheckpointShapeError: A tensor has another shape, or only one of the two has it.
    """
    values = {
        _own_name(name, model_state): value
        for name, value in stored.items()
        if not (name.endswith(_EXTRA) and (value is None or name not in model_state))
    }
    shapes = {
        name: tuple(tensor.shape) for name, tensor in values.items() if isinstance(tensor, torch.Tensor)
    }
    model_shapes = {
        name: tuple(tensor.shape)
        for name, tensor in model_state.items()
        if isinstance(tensor, torch.Tensor) and not name.endswith(_EXTRA)
    }
    check_shapes(model_shapes, shapes, path=path, may_lack=not strict, may_have_more=not strict)
    return values, [name for name in stored if name in model_shapes] == [
        name for name in model_state if name in model_shapes
    ]


def _own_name(name: str, model_state: Mapping[str, Any]) -> str:
    """Return the name of a stored weight in a model whose norms are fused, or are not."""
    if name not in model_state:
        for separate, fused in _FUSED_NORMS:
            for old_part, new_part in ((separate, fused), (fused, separate)):
                if (changed := name.replace(old_part, new_part)) != name and changed in model_state:
                    return changed
    return name
