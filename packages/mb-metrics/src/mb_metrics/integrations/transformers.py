"""Callback for the Trainer of Hugging Face Transformers.

Install it with `pip install "mb-metrics[transformers]"`.
"""

import re
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from mb_metrics.integrations.step_logger import StepLogger
from mb_metrics.names import GRAD_NORM, LEARNING_RATE
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value

_NAMES = {"learning_rate": LEARNING_RATE, "grad_norm": GRAD_NORM}
"""What the Trainer logs under another name than `Metrics`."""
_OMITTED = re.compile(
    r"epoch|total_flos|num_input_tokens_seen|train_loss|eval_(.*_)?loss|.*_(runtime|per_second|preparation_time)"
)
"""What the Trainer logs, and is not a metric of a step: counters, times, the end of training, losses of evaluations."""


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Callback for `Trainer(callbacks=[TransformersCallback(metrics)])` that records every optimizer step.

    The Trainer reads the loss from the device at its `logging_steps`. This callback takes the losses of the
    microbatches from the output of the model, as tensors, so that the host does not wait for the device. If the output
    has no loss, the loss that the Trainer logs is recorded instead. In addition it records the learning rate, samples
    and tokens, what the Trainer logs (`grad_norm`, values of `self.log`), and the losses of evaluations. The time of
    evaluations and saves does not count as training.

    With several ranks the loss is that of the data of this rank, as the model returns it. `Metrics(group=...,
    reduce={"loss": "mean"})` and this callback on every rank record the loss of all, as the Trainer logs it.

    Use the recorder as a context manager around `trainer.train`, which closes it.

    Args:
        metrics: Recorder; with sinks on one rank only.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logger: StepLogger | None = None
        self._microbatches = _Microbatches()
        self._evaluation: dict[str, float] = {}
        self._held: dict[str, Value] = {}
        self._learning_rate: float | None = None

    def on_train_begin(
        self, args: Any, _state: Any, _control: Any, model: Any = None, **_others: Any
    ) -> None:
        """Register a hook on the model."""
        self._microbatches.hook(model, args)
        self._logger = None
        self._metrics.restart_clock()

    def on_step_begin(
        self, _args: Any, state: Any, _control: Any, optimizer: Any = None, **_others: Any
    ) -> None:
        """Record the previous step with what was logged for it, and its evaluation."""
        if self._logger is None:  # not in on_train_begin, in which another callback may load a checkpoint
            self._logger = StepLogger(self._metrics, start_step=state.global_step)
        self._record(state.global_step)
        self._learning_rate = optimizer.param_groups[0]["lr"]

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """End the time of an optimizer step."""
        values = {**self._microbatches.losses(), LEARNING_RATE: self._learning_rate, **self._held}
        self._held = {}
        self._steps.log(values, state.global_step)

    def on_log(
        self, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any] | None = None, **_others: Any
    ) -> None:
        """Add what the Trainer logs to its step; to the next one if that step is recorded already."""
        metrics = {
            _NAMES.get(name, name): value
            for name, value in (logs or {}).items()
            if isinstance(value, (int, float)) and not _OMITTED.fullmatch(name)
        }
        if self._microbatches.have_losses:
            metrics.pop("loss", None)
        metrics.pop(LEARNING_RATE, None)
        if self._logger is None or state.global_step <= self._logger.recorded_step:
            self._held |= metrics
        else:
            self._logger.log(metrics, state.global_step, ends_step=False)

    def on_evaluate(
        self, _args: Any, state: Any, _control: Any, metrics: Mapping[str, Any] | None = None, **_others: Any
    ) -> None:
        """Keep the losses of an evaluation until its step is recorded, and restart the step clock."""
        losses = {name: value for name, value in (metrics or {}).items() if name.endswith("loss")}
        self._evaluation |= {name.removeprefix("eval_"): value for name, value in losses.items()}
        self._metrics.restart_clock()
        if self._logger is None:
            self._record(state.global_step)

    def on_save(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Write every step, because a resumed run starts after the checkpoint, and restart the step clock."""
        self._record(state.global_step)
        self._metrics.flush()
        self._metrics.restart_clock()

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Remove the hook and write every step."""
        self._record(state.global_step)
        self._microbatches.remove_hook()
        self._logger = None
        self._metrics.flush()

    @property
    def _steps(self) -> StepLogger:
        assert self._logger is not None, "on_step_begin precedes the end of every step"
        return self._logger

    def _record(self, step: int) -> None:
        if self._logger is not None:
            samples, tokens = self._microbatches.counts()
            self._logger.record(samples=samples, tokens=tokens)
        if self._evaluation:
            self._metrics.evaluation(step, self._evaluation)
            self._evaluation = {}


class _Microbatches:
    """Losses, samples and tokens of the microbatches of a step, read by a hook from the calls of a model."""

    def __init__(self) -> None:
        self.have_losses = False
        """Whether the output of the model has a loss."""
        self._losses: list[Any] = []
        self._are_shares = False
        self._samples = self._tokens = 0
        self._ranks = 1
        self._scale = 1
        self._hook: Any = None

    def hook(self, model: Any, args: Any) -> None:
        """Register the hook; `args` are the training arguments."""
        self.remove_hook()
        self._ranks = args.world_size
        # with the token count of all ranks, the model divides the sum of the losses of one rank by it
        self._scale = args.world_size if args.average_tokens_across_devices else 1
        self._hook = model.register_forward_hook(self._on_forward, with_kwargs=True)

    def remove_hook(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def losses(self) -> dict[str, Value]:
        """Return the loss of a step on its device; empty if the output of the model has no loss."""
        if not self._losses:
            return {}
        losses, self._losses = self._losses, []
        return {"loss": sum(losses) * (self._scale if self._are_shares else 1 / len(losses))}

    def counts(self) -> tuple[int | None, int | None]:
        """Return the samples and tokens of a step over all ranks; None if they are not known."""
        samples, tokens = self._samples * self._ranks, self._tokens * self._ranks
        self._samples = self._tokens = 0
        return samples or None, tokens or None

    def _on_forward(self, model: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if not model.training:
            return
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        self.have_losses = loss is not None
        if loss is not None:
            self._are_shares = kwargs.get("num_items_in_batch") is not None
            self._losses.append(loss.detach().mean())
        inputs = kwargs.get("input_ids")
        if inputs is not None:
            self._samples += inputs.shape[0]
            self._tokens += inputs.numel()
