"""Megatron Core's rerun machine, driven by the loop. Imports megatron.

The machine looks at the losses of each step. A suspicious one makes it run the step again on the same data and random
numbers: a different result means a passing fault of the device, the same one either a lasting fault or a wrong model,
which only another device can tell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
from torch import Tensor

from mb_loop.loss_checks import require_finite_loss


class RerunSettings(Protocol):
    """The fields of the section `rerun_state_machine` that are read."""

    @property
    def rerun_mode(self) -> str:
        """One of disabled, validate_results and report_determinism_stats."""

    @property
    def spiky_loss_factor(self) -> float:
        """A loss is spiky at this multiple of the largest of the first hundred."""

    @property
    def error_injection_rate(self) -> int:
        """One false result per so many checks; 0: none."""

    @property
    def error_injection_type(self) -> str:
        """One of correct_result, transient_error and persistent_error."""

    @property
    def check_for_nan_in_loss(self) -> bool:
        """Refuse losses that are NaN or infinite."""

    @property
    def check_for_spiky_loss(self) -> bool:
        """Report losses that are unusually large."""


class MegatronRerunMachine:
    """Megatron's machine for one run; the process has one at a time, and a new one replaces it.

    Pass it to `train` as `reruns`, and `inspect_loss` to the forward step. Unless the mode is "disabled", a step costs
    one more collective over the world and one wait for the device, and results are looked at from the second step of
    the process on. A step runs again on what the data iterator gave the first time.

    Exit codes: 17, the result was another one when run again (no checkpoint); 16, it was the same (a checkpoint, to run
    the step on another device). In mode "disabled" a loss that is no number raises on the rank that sees it.

    Args:
        settings: the section `rerun_state_machine`.
    """

    def __init__(self, settings: RerunSettings) -> None:
        self._settings = settings
        self._iterators: Any = None
        self._evaluating = False
        destroy_rerun_state_machine()
        initialize_rerun_state_machine(
            state_save_func=_save_random_state,
            state_restore_func=_restore_random_state,
            mode=RerunMode(settings.rerun_mode),
            error_injector=RerunErrorInjector(
                error_injection_rate=settings.error_injection_rate,
                error_injection_type=RerunDiagnostic(settings.error_injection_type),
            ),
        )
        self._machine = get_rerun_state_machine()

    def begin(self, step: int, data_iterator: Any) -> Any:
        """Count from this step, and return an iterator that can give a step's data again; a list gives a list."""
        self._machine.current_iteration = step - 1  # the machine counts before the passes
        several = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        wrapped = [
            each if each is None or isinstance(each, RerunDataIterator) else RerunDataIterator(each)
            for each in several
        ]
        self._iterators = wrapped if isinstance(data_iterator, list) else wrapped[0]
        return self._iterators

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Say whether to make the passes. Collective over the world unless disabled."""
        return bool(self._machine.should_run_forward_backward(data_iterator))

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Say what the results of the step ask for; alike on all ranks."""
        save, leave, code = self._machine.should_checkpoint_and_exit()
        return bool(save), bool(leave), int(code)

    @contextmanager
    def discarding(self, data_iterator: Any) -> Iterator[None]:
        """Drop what the last step read, and keep nothing of what is read in the block; the step counts.

        Where a loaded state waits for the second run of this step, it waits no longer.
        """
        several = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        for each in several:
            if each is not None:
                each.advance()
        self._machine.current_iteration += 1
        self._machine.state, self._machine.data_iterator_checkpoints = RerunState.NOT_RUNNING_YET, None
        with self.paused():  # so that the iterators keep nothing
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run nothing again in the block; a loss that is no number still raises."""
        mode = self._machine.mode
        self._machine.mode, self._evaluating = RerunMode.DISABLED, True
        try:
            yield
        finally:
            self._machine.mode, self._evaluating = mode, False

    def inspect_loss(self, loss: Tensor) -> None:
        """Look at the loss of one microbatch, within the forward pass. One wait for the device per kind of check.

        Raises:
            NonFiniteLossError: it is no number, and the mode is "disabled" or this is an evaluation.
        """
        if self._settings.check_for_nan_in_loss:
            if self._machine.mode is RerunMode.DISABLED:
                require_finite_loss(loss)
            else:
                self._machine.validate_result(
                    result=loss, rejection_func=_not_a_number, message="loss is NaN or infinite", fatal=True
                )
        if self._settings.check_for_spiky_loss and not self._evaluating:
            too_large = partial(
                self._machine.is_unexpectedly_large,
                threshold=self._settings.spiky_loss_factor,
                context="loss",
            )
            self._machine.validate_result(
                result=loss, rejection_func=too_large, message="Spiky loss", fatal=False
            )

    def state_dict(self, *, template: bool = False) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of the machine under `rerun_state_machine`; None when there is nothing.

        Its entry `sharded` is a ShardedObject of Megatron's, one per rank. With `template`, what a load asks for. All
        ranks of the world call it alike.
        """
        state: dict[str, Any] | None = self._machine.state_dict(self._iterators, "torch_dist", force=template)
        return state

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take over a loaded state where a step waits in it for its second run; anything else is left alone."""
        if self._machine.validate_state_dict(state):
            self._machine.load_state_dict(state)


def _not_a_number(loss: Tensor) -> bool:
    return not bool(loss.isfinite().all())


def _save_random_state() -> dict[str, Any]:
    """Return the tracked states; of a tracker for CUDA graphs, which has generators, copies of theirs."""
    states = get_cuda_rng_tracker().get_states()
    return {
        "rng_tracker_states": {
            name: state.get_state() if isinstance(state, torch.Generator) else state
            for name, state in states.items()
        }
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    """Put tracked states back; in generators themselves, which captured graphs hold on to."""
    tracker, saved = get_cuda_rng_tracker(), state["rng_tracker_states"]
    generators = {
        name: each for name, each in tracker.get_states().items() if isinstance(each, torch.Generator)
    }
    for name, generator in generators.items():
        generator.set_state(saved[name])
    if not generators:
        tracker.set_states(saved)
