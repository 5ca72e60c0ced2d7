"""Faults of batches that grow, in Megatron Core's calculator of microbatches and in Megatron-LM's schedules."""

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_CALCULATOR = "megatron.core.num_microbatches_calculator"
_TRAINING = "megatron.training.training"
_TESTS = "packages/mb-guard/tests/test_batch_sizes.py"


def steps_of_ramp(ramp: Sequence[int], *, global_batch_size: int, multiple_of: int, unit: int) -> str:
    """Return `rampup_batch_size` [first, increment, S] as a `step_batch_size_schedule`.

    The batch grows by n increments to the global batch size, one after every S / n sequences. Sizes are rounded down
    to `multiple_of`; thresholds are in sequences times `unit`.

    Raises:
        ValueError: the increments do not end at the global batch size, or the first batch is rounded down to 0.
    """
    first, increment, sequences = map(int, ramp)
    if (
        min(first, increment) < 1
        or sequences < 0
        or (global_batch_size - first) % increment
        or first > global_batch_size
    ):
        raise ValueError(
            f"rampup_batch_size: {first} does not grow to global_batch_size in increments of {increment} over "
            f"{sequences} sequences (global_batch_size={global_batch_size}). Choose a first batch and an increment "
            "above 0 that reach it, such as 16 8 300000 for 1024."
        )
    stages = (global_batch_size - first) // increment
    sizes = {}
    for stage in range(stages + 1):
        threshold = -(-stage * sequences // max(stages, 1))  # of stages that begin together the last counts
        sizes[threshold * unit] = (first + stage * increment) // multiple_of * multiple_of
    if not sizes[0]:
        raise ValueError(
            f"rampup_batch_size: the first batch of {first} is smaller than a microbatch of each replica "
            f"({multiple_of}), and rounding down would leave it empty. Set a first batch of at least {multiple_of}."
        )
    return " ".join(f"{threshold}:{size}" for threshold, size in sizes.items())


def grow(configure: Function) -> Function:
    """Give the calculator a ramp as the schedule that it implements."""
    signature = inspect.signature(configure)

    @functools.wraps(configure)
    def patched(*inputs: Any, **options: Any) -> None:
        call = signature.bind(*inputs, **options)
        call.apply_defaults()
        given = call.arguments
        if given["rampup_batch_size"] is not None and given["step_batch_size_schedule"] is None:
            given["step_batch_size_schedule"] = steps_of_ramp(
                given["rampup_batch_size"],
                global_batch_size=given["global_batch_size"],
                multiple_of=_multiple(
                    given["decrease_batch_size_if_needed"],
                    given["micro_batch_size"],
                    given["data_parallel_size"],
                ),
                unit=1,
            )
            given.update(rampup_batch_size=None, seq_length=None, decrease_batch_size_if_needed=False)
        configure(*call.args, **call.kwargs)

    return patched


@around
def grow_from_arguments(set_global_variables: Function, args: Any, *inputs: Any, **options: Any) -> None:
    """Set `step_batch_size_schedule`, in tokens, which Megatron-LM reads instead of `rampup_batch_size`."""
    if args.rampup_batch_size is not None and args.step_batch_size_schedule is None:
        replicas = args.data_parallel_size * args.gtp_weight_remat_size
        args.step_batch_size_schedule = steps_of_ramp(
            args.rampup_batch_size,
            global_batch_size=args.global_batch_size,
            multiple_of=_multiple(args.decrease_batch_size_if_needed, args.micro_batch_size, replicas),
            unit=args.seq_length,
        )
        args.decrease_batch_size_if_needed = False
    set_global_variables(args, *inputs, **options)


def _multiple(decrease_if_needed: bool, micro_batch_size: int, data_parallel_size: int) -> int:
    return micro_batch_size * data_parallel_size if decrease_if_needed else 1


def sequences_of_iterations(function: Function) -> Function:
    """Count the sequences of so many iterations with their batches instead of with the global batch size."""
    source = inspect.getsource(function)
    products = {
        "args.lr_wsd_decay_iters * args.global_batch_size": "mb_guard_sequences(args.lr_decay_iters)"
        " - mb_guard_sequences(args.lr_decay_iters - args.lr_wsd_decay_iters)",
        **{
            f"{name} * args.global_batch_size": f"mb_guard_sequences({name})"
            for name in ("args.lr_decay_iters", "args.lr_warmup_iters", "args.train_iters")
        },
    }
    changes = [(old, new) for old, new in products.items() if old in source]
    return rewritten(function, *changes, mb_guard_sequences=_sequences)


def _sequences(iterations: int) -> int:
    """Return the sequences in the first iterations of a run."""
    from megatron.core import num_microbatches_calculator

    calculator: Any = copy.copy(num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR)
    if not hasattr(calculator, "schedule"):  # a constant batch
        return iterations * int(calculator.get_current_running_global_batch_size())
    sequences = 0
    for _ in range(iterations):
        calculator.update(sequences, consistency_check=False)
        sequences += calculator.get_current_running_global_batch_size()
    return sequences


def complete_batches(update_train_iters: Function) -> Function:
    """End the run with the last complete batch of `train_samples`, as with a constant batch."""
    update = "            update_num_microbatches(consumed_samples, consistency_check=False)\n"
    return rewritten(
        update_train_iters,
        (
            f"while consumed_samples < args.train_samples:\n{update}",
            f"while True:\n{update}"
            "            if consumed_samples + get_current_global_batch_size() > args.train_samples:\n"
            "                print_rank_0(f'mb-guard: the last {args.train_samples - consumed_samples} of "
            "--train-samples are not a full batch and are left out')\n"
            "                break\n",
        ),
    )


def _patch(wrap: Function, module: str, target: str, source: str) -> Patch:
    return Patch(wrap=wrap, module=module, target=target, sources=(source,))


def _changing_batch(settings: Settings) -> bool:
    return bool(settings.step_batch_size_schedule or settings.rampup_batch_size)


FAULTS = (
    Fault(
        id="rampup-batch-size-ignored",
        effect="wrong number",
        summary="rampup_batch_size (--rampup-batch-size) has no effect: the batch has its final size from the first "
        "step on.",
        shows="Megatron-LM: silent; callers of init_num_microbatches_calculator: a line that it is deprecated. "
        "A run with --rampup-batch-size 4 4 24 --global-batch-size 16 --train-samples 80 has 5 steps instead of 7.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/4411",
        test=f"{_TESTS}::test_the_batch_grows_by_the_documented_formula",
        met=lambda settings: settings.rampup_batch_size is not None,
        patches=(
            _patch(grow, _CALCULATOR, "init_num_microbatches_calculator", "681f3b9d7af88b1a"),
            _patch(grow, _CALCULATOR, "reconfigure_num_microbatches_calculator", "cd553d11ff102982"),
            _patch(
                grow_from_arguments,
                "megatron.training.global_vars",
                "set_global_variables",
                "41a9eae98a34ba80",
            ),
        ),
    ),
    Fault(
        id="changing-batch-counted-as-constant",
        effect="wrong number",
        summary="With --step-batch-size-schedule, Megatron-LM counts iterations of schedules and data with "
        "micro_batch_size * data_parallel_size sequences each, and --train-samples ends with a batch beyond them.",
        shows="Silent: with --step-batch-size-schedule '0:4 768:8' --train-iters 10 and a micro-batch of 1, the "
        "learning rate is 0 from the third step on.",
        action="put right",
        test=f"{_TESTS}::test_a_schedule_in_iterations_ends_with_the_run",
        met=_changing_batch,
        patches=(
            _patch(sequences_of_iterations, _TRAINING, "get_optimizer_param_scheduler", "8e562403a301617a"),
            _patch(
                sequences_of_iterations, _TRAINING, "get_train_valid_test_num_samples", "b4e279d9203aefb2"
            ),
            _patch(complete_batches, _TRAINING, "update_train_iters", "a88bbd2ee65cee9c"),
        ),
    ),
)
