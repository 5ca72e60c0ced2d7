"""State of a plain torch optimizer of a Megatron Core model, sharded as the parameters are."""

import copy
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import torch
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from torch.optim import Optimizer

from mb_checkpoint.errors import CheckpointLayoutError

COMMON_STEP = "common_step"
"""Key of the number of steps, which Megatron Core stores once for all parameters."""


def leave_out_unstored(requested: dict[str, Any], stored: Collection[str]) -> int:
    """Remove the state of each parameter of which nothing is stored, in place; return the number of these parameters.

    A trainable parameter that never had a gradient has no state when it is saved.
    """
    state = requested["state"]
    lacking = [
        number
        for number, values in state.items()
        if number != COMMON_STEP and values and not any(value.key in stored for value in values.values())
    ]
    for number in lacking:
        del state[number]
    return len(lacking)


class TorchOptimizerState:
    """Torch optimizer with the methods that checkpoints call on an optimizer of Megatron Core.

    Tensors of the state must have the shape of their parameter, as those of SGD, Adam and AdamW; the number of steps is
    common to all parameters.

    Args:
        optimizer: Optimizer of the parameters of a Megatron Core model.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups."""
        return self._optimizer.param_groups

    def sharded_state_dict(
        self, model_sharded_state_dict: dict[str, Any], is_loading: bool = False, metadata: Any = None
    ) -> dict[str, Any]:
        """Return the state with the sharding of the parameters; for a load, of an optimizer that has made a step.

        Raises:
            CheckpointLayoutError: A tensor of the state has another shape than its parameter, or the number of steps
                differs between parameters.
        """
        if is_loading and not self._optimizer.state:
            self._make_state()
        state = self._optimizer.state_dict()
        state["state"] = {number: dict(values) for number, values in state["state"].items()}
        parameters = list(chain.from_iterable(group["params"] for group in self.param_groups))
        self._reject_other_shapes(state["state"], parameters)
        steps = {float(values["step"]) for values in state["state"].values() if "step" in values}
        if len(steps) > 1:
            raise CheckpointLayoutError(
                f"optimizer: {type(self._optimizer).__name__} has made {sorted(steps)} steps, depending on the "
                "parameter, and one number is stored. Update all parameters in each step."
            )
        step = next((values["step"] for values in state["state"].values() if "step" in values), None)
        sharded = get_param_id_to_sharded_param_map(model_sharded_state_dict, parameters)
        optim_state_to_sharding_state(state, sharded, exclude_keys=("step",))
        if step is not None:
            state["state"][COMMON_STEP] = step
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a loaded state."""
        common = state_dict["state"].pop(COMMON_STEP, None)
        if common is not None:
            for values in state_dict["state"].values():
                values["step"] = copy.deepcopy(common)
        self._optimizer.load_state_dict(state_dict)

    def _reject_other_shapes(
        self, state: Mapping[int, Mapping[str, Any]], parameters: list[torch.Tensor]
    ) -> None:
        for number, values in state.items():
            for key, value in values.items():
                if key != "step" and getattr(value, "shape", None) != parameters[number].shape:
                    raise CheckpointLayoutError(
                        f"optimizer: the state {key} of {type(self._optimizer).__name__} has another shape than its "
                        "parameter, and cannot be sharded as the parameter is. Use an optimizer such as AdamW, or "
                        "TorchCheckpointer for a model that is not split."
                    )

    def _make_state(self) -> None:
        """Make a step with zero gradients and a learning rate of zero: it creates the state and changes no weight.

        Frozen parameters have no gradient, and so no state in a checkpoint.
        """
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        before = [(parameter, parameter.grad) for parameter in parameters if parameter.requires_grad]
        rates = [group["lr"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            for parameter, _ in before:
                parameter.grad = torch.zeros_like(parameter)
            self._optimizer.step()
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
            for parameter, gradient in before:
                parameter.grad = gradient
