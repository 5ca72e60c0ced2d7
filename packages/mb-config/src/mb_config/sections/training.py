"""Sections of training and evaluation: lengths, batch sizes, intervals."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from mb_config.container.section import Section, assign_computed
from mb_config.preflight.problems import reject
from mb_config.rules.batch_sizes import uneven_ramp
from mb_config.rules.training import LENGTH_RULES
from mb_schema.batch_stages import steps_within, unscheduled_stages


@dataclass(kw_only=True)
class TrainingConfig(Section):
    """Training length, batch sizes, exit conditions, and maintenance between steps."""

    micro_batch_size: int | None = None
    """Sequences per forward-backward pass of one model replica."""

    global_batch_size: int | None = None
    """Sequences per optimizer step over all replicas: a multiple of micro_batch_size x data-parallel size."""

    rampup_batch_size: list[int] | None = None
    """[first batch, increment, sequences]: a global batch size that grows linearly over this many sequences."""

    step_batch_size_schedule: str | None = None
    """Batch-size schedule "threshold:size ..." such as "0:768 250B:1536"; thresholds are consumed tokens. Replaces
    `global_batch_size` in training; evaluations still use `global_batch_size`, or if it is None one micro batch on each
    replica."""

    decrease_batch_size_if_needed: bool = False
    """Round the batch down to a multiple of micro_batch_size x data-parallel size instead of raising an error."""

    empty_unused_memory_level: Literal[0, 1, 2] = 0
    """Release cached device memory: 0 never, 1 after each backward pass, 2 also after the optimizer step."""

    check_weight_hash_across_dp_replicas_interval: int | None = None
    """Interval in steps of the check that data-parallel replicas are bitwise identical; None: never."""

    gpu_sniff_test_interval: int | None = None
    """Interval in steps of a GPU speed test. Not implemented yet: rejected if set."""

    train_sync_interval: int | None = None
    """Interval in steps at which the host synchronizes with the device; None: never."""

    train_iters: int | None = None
    """Optimizer steps of the training, including restarts."""

    train_samples: int | None = None
    """Sequences of the training, including restarts, as an alternative to `train_iters`. A last batch that is not full
    is left out."""

    num_epochs: float | None = None
    """Epochs over fine-tuning data, as an alternative to `train_iters`; fractions are allowed. Resolving computes
    `train_iters` when the number of training samples is known."""

    exit_interval: int | None = None
    """Exit at each multiple of this number of steps; None: never."""

    exit_duration_in_mins: int | None = None
    """Exit after this run time in minutes; None: never."""

    early_stop_patience: int | None = None
    """End training once `early_stop_metric` has not improved in this many evaluations in a row; None: never."""

    early_stop_metric: str = "lm loss"
    """Metric of the evaluation for `early_stop_patience`."""

    early_stop_min_delta: float = 0.0
    """Smallest change of `early_stop_metric` that is an improvement; a change of exactly this size is none."""

    early_stop_mode: Literal["min", "max"] = "min"
    """"min" if a lower value of `early_stop_metric` is better, "max" if a higher one is."""

    exit_signal_handler: bool = False
    """On `exit_signal`, save a checkpoint and exit."""

    exit_signal: signal.Signals = signal.SIGTERM
    """Signal that requests the exit, by name in files ("SIGTERM")."""

    exit_signal_handler_for_dataloader: bool = False
    """Let data loader workers ignore `exit_signal`. Those of the trainer always do."""

    exit_signal_handler_for_training: bool = False
    """Exit without a traceback on SIGINT and SIGTERM. Not implemented yet: rejected if set."""

    manual_gc: bool = False
    """Run Python's garbage collection at fixed steps, so that all ranks pause at the same time."""

    manual_gc_interval: int = 0
    """Interval of manual garbage collection in steps; 0: only around evaluation."""

    manual_gc_eval: bool | int = True
    """With `manual_gc`, collect before and after each evaluation. A number, as in recipes of Megatron-Bridge, is no
    interval: any but 0 counts as true, as in Megatron-LM."""

    iterations_to_skip: list[int] = field(default_factory=list)
    """Steps, counted from 1, whose data is read and skipped."""

    check_optimizer_step_success: bool = True
    """All-reduce over the model-parallel group whether a step was skipped."""

    skip_sync_grad_norm_across_mp: bool = False
    """Report the gradient norm of each rank instead of the model-parallel maximum."""

    eval_iters: int | None = None
    """Deprecated name of `validation.eval_iters`; resolving moves the value."""

    eval_interval: int | None = None
    """Deprecated name of `validation.eval_interval`; resolving moves the value."""

    skip_train: bool | None = None
    """Deprecated name of `validation.skip_train`; resolving moves the value."""

    def finalize(self) -> None:
        """Compute `train_iters` from `train_samples`, without a last batch that is not full. Idempotent.

        With a `step_batch_size_schedule` it stays unset: resolving computes it, with the sequence length of the model.

        Raises:
            ConfigError: If the length is not set, set more than once, or cannot be computed (V056 to V058, TR02).
        """
        reject({"train": self}, (*LENGTH_RULES, uneven_ramp))
        constant = self.step_batch_size_schedule is None
        if constant and self.train_samples is not None and self.global_batch_size is not None:
            stages = unscheduled_stages(global_batch_size=self.global_batch_size, ramp=self.rampup_batch_size)
            assign_computed(self, "train_iters", steps_within(self.train_samples, stages))


@dataclass(kw_only=True)
class ValidationConfig(Section):
    """Intervals and lengths of evaluations."""

    eval_iters: int | None = 100
    """Global batches per evaluation; None or 0: no evaluation."""

    eval_interval: int | None = None
    """Interval of evaluations in training steps; None or 0: none during training."""

    start_eval_at_iter: int | None = None
    """First step at which an evaluation can run; None: after the first interval."""

    eval_global_batch_size: int | None = None
    """Global batch size of the evaluation in sequences; None: as in training."""

    eval_micro_batch_size: int | None = None
    """Micro batch size of the evaluation in sequences; None: as in training."""

    skip_train: bool = False
    """Only evaluate; run no training steps."""

    test_mode: bool = False
    """Run checks during the experiment."""

    full_validation: bool = False
    """Read every validation set completely, from its beginning, at every evaluation, as far as it fills global batches,
    instead of `eval_iters` batches."""

    multiple_validation_sets: bool = False
    """Evaluate and report each prefix of the validation data separately."""

    validation_set_names: list[str] | None = None
    """Names of the validation sets in reports, in order; None: the last parts of their paths."""
