"""Adapter for Megatron Core's rerun state machine. Imports megatron.

The machine checks the losses of each step. A suspicious loss makes it run the step again on the same data and random
state. A different result indicates a transient device fault. The same result indicates either a persistent device fault
or a wrong model; only a rerun on another device can distinguish the two.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.rerun_state_machine import (
    RerunDataIterator,
    RerunDiagnostic,
    RerunErrorInjector,
    RerunMode,
    RerunState,
    destroy_rerun_state_machine,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
)
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch import Tensor

from mb_loop.step.loss_checks import DeferredLossCheck, require_finite_loss


class RerunSettings(Protocol):
    """Fields that are read from section `rerun_state_machine`."""

    @property
    def rerun_mode(self) -> str:
        """One of disabled, validate_results and report_determinism_stats."""

    @property
    def spiky_loss_factor(self) -> float:
        """A loss is reported as spiky above this multiple of the largest of the first hundred losses."""

    @property
    def error_injection_rate(self) -> int:
        """Average number of checks per injected error; 0: no errors are injected."""

    @property
    def error_injection_type(self) -> str:
        """One of correct_result, transient_error and persistent_error."""

    @property
    def check_for_nan_in_loss(self) -> bool:
        """Reject losses that are NaN or infinite."""

    @property
    def check_loss_immediately(self) -> bool:
        """Read each loss on the host at once, rather than a flag one step later."""

    @property
    def check_for_spiky_loss(self) -> bool:
        """Report losses that are unusually large."""


class MegatronRerunMachine:
    """Megatron's rerun state machine for one run. A process has one machine; a new instance replaces it.

    Pass it to `train` as `rerun_machine`, and call `inspect_loss` in the forward step. Unless the mode is "disabled", a
    step has one additional collective over the world and one device synchronisation, and results are checked from the
    second step of the process on. A repeated step reads the same data as the first run.

    Exit codes: 17 if the repeated step had another result (no checkpoint); 16 if it had the same result (with a
    checkpoint, to run the step on another device). In mode "disabled" a loss that is NaN or infinite raises on the rank
    that computes it.

    Args:
        settings: section `rerun_state_machine`.
    """

    def __init__(self, settings: RerunSettings) -> None:
        self._settings = settings
        self._iterators: Any = None
        self._model: Sequence[Any] = ()
        self._evaluating = False
        destroy_rerun_state_machine()
        initialize_rerun_state_machine(
            state_save_func=self._save_state,
            state_restore_func=self._restore_state,
            mode=RerunMode(settings.rerun_mode),
            error_injector=RerunErrorInjector(
                error_injection_rate=settings.error_injection_rate,
                error_injection_type=RerunDiagnostic(settings.error_injection_type),
            ),
        )
        self._machine = get_rerun_state_machine()

    def begin(self, step: int, data_iterator: Any, model: Sequence[Any] = ()) -> Any:
        """Start counting at `step`; return an iterator that can repeat the data of a step. A list returns a list.

        A repeated step finds the buffers of the chunks of `model` as the first run did.
        """
        self._model = model
        # the machine counts a step before its forward-backward passes
        self._machine.current_iteration = step - 1
        several = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        wrapped = [
            iterator
            if iterator is None or isinstance(iterator, RerunDataIterator)
            else RerunDataIterator(iterator)
            for iterator in several
        ]
        self._iterators = wrapped if isinstance(data_iterator, list) else wrapped[0]
        return self._iterators

    def _save_state(self) -> dict[str, Any]:
        return {**_save_random_state(), "counts": [(each, each.clone()) for each in _counts(self._model)]}

    def _restore_state(self, state: dict[str, Any]) -> None:
        _restore_random_state(state)
        saved = {id(each): value for each, value in state["counts"]}
        for each in _counts(self._model):
            each.copy_(saved[id(each)]) if id(each) in saved else each.zero_()

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Return whether to run the forward-backward passes. Collective over the world unless disabled."""
        return bool(self._machine.should_run_forward_backward(data_iterator))

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return (save, leave, exit code) for the results of the step; identical on all ranks."""
        save, leave, code = self._machine.should_checkpoint_and_exit()
        return bool(save), bool(leave), int(code)

    @contextmanager
    def discarding(self, data_iterator: Any) -> Iterator[None]:
        """Count a step whose data is discarded within the block. The data is not kept for a repetition.

        A loaded state that is waiting for the repetition of this step is reset.
        """
        several = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        for iterator in several:
            if iterator is not None:
                # Drops the microbatches of the step before, which the machine itself drops only when it runs a step.
                iterator.advance()
        self._machine.current_iteration += 1
        self._machine.state, self._machine.data_iterator_checkpoints = RerunState.NOT_RUNNING_YET, None
        with self.paused():  # a disabled machine makes its iterators record nothing
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable repetitions within the block. A loss that is NaN or infinite still raises."""
        mode = self._machine.mode
        self._machine.mode, self._evaluating = RerunMode.DISABLED, True
        try:
            yield
        finally:
            self._machine.mode, self._evaluating = mode, False

    def inspect_loss(self, loss: Tensor) -> None:
        """Check the loss of one microbatch, within the forward pass. One device synchronisation per enabled check.

        Raises:
            NonFiniteLossError: the loss is NaN or infinite, and the mode is "disabled" or this is an evaluation.
        """
        inspect_loss(
            loss,
            finite=self._settings.check_for_nan_in_loss,
            spiky=self._settings.check_for_spiky_loss and not self._evaluating,
            spiky_loss_factor=self._settings.spiky_loss_factor,
        )

    def state_dict(self, *, template: bool = False) -> dict[str, Any] | None:
        """Return the state for checkpoints, stored under `rerun_state_machine`; None if there is no state.

        Its entry `sharded` is one Megatron ShardedObject per rank. With `template`, return the structure that a load
        expects. All ranks of the world must call it.
        """
        state: dict[str, Any] | None = self._machine.state_dict(self._iterators, "torch_dist", force=template)
        return state

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load a state in which a step is waiting for its repetition; ignore any other state."""
        if self._machine.validate_state_dict(state):
            self._machine.load_state_dict(state)


def build_rerun_machine(settings: RerunSettings) -> MegatronRerunMachine | None:
    """Return the rerun state machine; None if no setting needs it. Call it before a checkpoint is loaded."""
    needed = settings.rerun_mode != "disabled" or settings.check_for_spiky_loss
    return MegatronRerunMachine(settings) if needed else None


def inspect_loss(loss: Tensor, *, finite: bool, spiky: bool, spiky_loss_factor: float = 10.0) -> None:
    """Check the loss of one microbatch by the machine of the process. Synchronises with the device for each check.

    Args:
        loss: the loss.
        finite: reject NaN and infinity.
        spiky: report a loss above `spiky_loss_factor` times the largest of the first hundred.
        spiky_loss_factor: see `spiky`.

    Raises:
        NonFiniteLossError: the loss is NaN or infinite, and no step is repeated.
    """
    machine = get_rerun_state_machine()
    if finite and machine.mode is RerunMode.DISABLED:
        require_finite_loss(loss)
    elif finite:
        machine.validate_result(
            result=loss, rejection_func=_not_a_number, message="loss is NaN or infinite", fatal=True
        )
    if spiky:
        too_large = partial(machine.is_unexpectedly_large, threshold=spiky_loss_factor, context="loss")
        machine.validate_result(result=loss, rejection_func=too_large, message="Spiky loss", fatal=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInspection:
    """Inspection of the losses of a run."""

    inspect: Callable[[Tensor], None] | None = None
    """Called with the loss of each microbatch, by the forward step; None: losses are not inspected."""
    callbacks: tuple[DeferredLossCheck, ...] = ()
    """Callbacks of the run that belong to it."""


def loss_inspection(settings: RerunSettings, machine: MegatronRerunMachine | None) -> LossInspection:
    """Return the inspection that the settings ask for.

    A rerun machine reads each loss at once. Otherwise losses that are NaN or infinite are found one step later, without
    waiting for the device, unless `check_loss_immediately` is set.

    Args:
        settings: section `rerun_state_machine`.
        machine: result of `build_rerun_machine` for this section.
    """
    if machine is not None:
        return LossInspection(inspect=machine.inspect_loss)
    if not settings.check_for_nan_in_loss:
        return LossInspection()
    if settings.check_loss_immediately:
        return LossInspection(inspect=require_finite_loss)
    check = DeferredLossCheck()
    return LossInspection(inspect=check.inspect, callbacks=(check,))


def _not_a_number(loss: Tensor) -> bool:
    return not bool(loss.isfinite().all())


def _counts(model: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that the passes of a step update: buffers such as the bias of experts, and logged losses.

    Megatron updates the bias with the gradients. A second run would otherwise route other tokens than the first.
    """
    experts = [entry.values for entry in get_moe_metrics_tracker().metrics.values()]
    predictions = [each for each in MTPLossLoggingHelper.tracker.values() if isinstance(each, Tensor)]
    # Megatron's DistributedDataParallel has an attribute `buffers`, a list of gradient buffers
    buffers = [each for chunk in model for each in torch.nn.Module.buffers(chunk)]
    return [*buffers, *experts, *predictions]


def _save_random_state() -> dict[str, Any]:
    """Return the tracked states; copies, if the tracker for CUDA graphs holds generators."""
    states = get_cuda_rng_tracker().get_states()
    return {
        "rng_tracker_states": {
            name: state.get_state() if isinstance(state, torch.Generator) else state
            for name, state in states.items()
        }
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    """Restore tracked states; within the generators themselves, because captured graphs reference them."""
    tracker, saved = get_cuda_rng_tracker(), state["rng_tracker_states"]
    generators = {
        name: state for name, state in tracker.get_states().items() if isinstance(state, torch.Generator)
    }
    for name, generator in generators.items():
        generator.set_state(saved[name])
    if not generators:
        tracker.set_states(saved)
