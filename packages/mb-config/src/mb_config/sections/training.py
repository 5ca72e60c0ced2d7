"""How long and in what batches to train and to evaluate."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from mb_config.problems import reject
from mb_config.rules.training import LENGTH_RULES
from mb_config.section import Section, assign_computed


@dataclass(kw_only=True)
class TrainingConfig(Section):
    """Length of the training, batch sizes, ways to stop, and housekeeping between steps."""

    micro_batch_size: int | None = None
    """Sequences in one forward and backward pass of one model replica."""

    global_batch_size: int | None = None
    """Sequences in one optimizer step over all replicas: a multiple of micro batch times data-parallel size."""

    rampup_batch_size: list[int] | None = None
    """[first batch, increment, sequences]: a global batch that grows in equal steps over so many sequences."""

    step_batch_size_schedule: str | None = None
    """Batch-size steps "threshold:size ..." such as "0:768 250B:1536"; thresholds are tokens consumed before. Used
    instead of `global_batch_size`, which evaluations still take theirs from."""

    decrease_batch_size_if_needed: bool = False
    """Round the batch down to a multiple of micro batch times data-parallel size instead of refusing."""

    empty_unused_memory_level: Literal[0, 1, 2] = 0
    """Release cached device memory: 0 never, 1 after each backward pass, 2 after the optimizer step too."""

    check_weight_hash_across_dp_replicas_interval: int | None = None
    """Steps between two proofs that data-parallel replicas hold the same bits; None: never."""

    gpu_sniff_test_interval: int | None = None
    """Steps between two quick probes of the GPU's speed. Nothing reads it yet: refused."""

    train_sync_interval: int | None = None
    """Steps between two waits of the host for the device; None: never."""

    train_iters: int | None = None
    """Optimizer steps of the whole training, restarts included."""

    train_samples: int | None = None
    """Sequences of the whole training, restarts included: the other way to give the length."""

    num_epochs: float | None = None
    """Passes over a finite dataset, the third way to give the length. Nothing reads it yet: refused."""

    exit_interval: int | None = None
    """Stop at each multiple of this many steps; None: never."""

    exit_duration_in_mins: int | None = None
    """Stop after this many minutes of running; None: never."""

    exit_signal_handler: bool = False
    """On `exit_signal`, save a checkpoint and stop."""

    exit_signal: signal.Signals = signal.SIGTERM
    """The signal that asks for the stop, by name in files ("SIGTERM")."""

    exit_signal_handler_for_dataloader: bool = False
    """Let the worker processes that load data outlive `exit_signal`. The trainer's always do."""

    exit_signal_handler_for_training: bool = False
    """Stop without a traceback on SIGINT and SIGTERM. Nothing reads it yet: refused."""

    manual_gc: bool = False
    """Collect Python's garbage at fixed steps, so that all ranks pause together."""

    manual_gc_interval: int = 0
    """Steps between two such collections; 0: only around evaluation."""

    manual_gc_eval: bool = True
    """Under `manual_gc`, collect before and after each evaluation."""

    iterations_to_skip: list[int] = field(default_factory=list)
    """Steps, counted from 1, whose data is read but not trained on."""

    check_optimizer_step_success: bool = True
    """Agree over the model-parallel group whether a step was skipped."""

    skip_sync_grad_norm_across_mp: bool = False
    """Leave the gradient norm as each rank computed it, instead of the model-parallel maximum."""

    eval_iters: int | None = None
    """Old place of `validation.eval_iters`; resolving moves it there."""

    eval_interval: int | None = None
    """Old place of `validation.eval_interval`; resolving moves it there."""

    skip_train: bool | None = None
    """Old place of `validation.skip_train`; resolving moves it there."""

    def finalize(self) -> None:
        """Derive `train_iters` from `train_samples` (rounded down). Calling it again changes nothing.

        Raises:
            ConfigError: the length is given in no way, in two ways, or cannot be computed (V056 to V058).
        """
        reject({"train": self}, LENGTH_RULES)
        if self.train_samples is not None and self.global_batch_size is not None:
            assign_computed(self, "train_iters", self.train_samples // self.global_batch_size)


@dataclass(kw_only=True)
class ValidationConfig(Section):
    """When to evaluate, and on how much."""

    eval_iters: int | None = 100
    """Global batches in one evaluation; None or 0: no evaluation."""

    eval_interval: int | None = None
    """Training steps between two evaluations; None: none during training."""

    start_eval_at_iter: int | None = None
    """First step at which an evaluation may run; None: from the first interval on."""

    eval_global_batch_size: int | None = None
    """Sequences in a global batch of the evaluation; None: as in training."""

    eval_micro_batch_size: int | None = None
    """Sequences in a micro batch of the evaluation; None: as in training."""

    skip_train: bool = False
    """Evaluate only: no training step is run."""

    test_mode: bool = False
    """Run live checks next to the experiment."""

    full_validation: bool = False
    """Read each validation set whole, from its beginning, at every evaluation, as far as it fills global batches;
    instead of `eval_iters` batches."""

    multiple_validation_sets: bool = False
    """Evaluate and report each prefix of the validation data by itself."""

    validation_set_names: list[str] | None = None
    """Names under which to report them, in their order; None: the last parts of their paths."""
