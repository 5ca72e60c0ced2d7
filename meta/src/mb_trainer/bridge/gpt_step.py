"""Forward step of `megatron.bridge.training.gpt_step`, for recipes that pass it to `pretrain`."""

from importlib import import_module
from typing import Any


def forward_step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Run one microbatch of a GPT, as the trainer does without a forward step; `state` has the dataset section."""
    steps = import_module("mb_models.training.forward_step")  # imports torch and megatron, after all checks
    step = steps.GPTForwardStep(**import_module("mb_trainer.run.data").batch_form(state.cfg))
    return step(data_iterator, model, return_schedule_plan)
