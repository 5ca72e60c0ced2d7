"""Functions that run on a rank of `test_batch_sizes.py`: Megatron-LM's schedules for a command line."""

import sys
from contextlib import nullcontext
from unittest.mock import patch

import torch
from megatron.core import num_microbatches_calculator as calculator

import mb_guard

MODEL = (
    "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --lr 1 --min-lr 0 --lr-decay-style linear --mock-data --vocab-size 100 --eval-iters 0 "
    "--eval-interval 100 --tokenizer-type NullTokenizer --transformer-impl local --no-persist-layer-norm "
    "--no-gradient-accumulation-fusion --distributed-backend gloo"
)


def steps(fault: str | None, flags: str) -> tuple[list[tuple[int, float]], int]:
    """Return batch size and learning rate of each step of a run, and the sequences of its training data.

    The batch is read and the schedule advanced as `megatron.training.training.train` does.
    """
    from megatron.training import global_vars, training
    from megatron.training.arguments import parse_args, validate_args

    with (
        mb_guard.without(fault) if fault else nullcontext(),
        patch.object(sys, "argv", ["pretrain_gpt.py", *MODEL.split(), *flags.split()]),
        patch.dict("os.environ", {"WORLD_SIZE": "1"}),
    ):
        try:
            global_vars.set_global_variables(validate_args(parse_args()), build_tokenizer=False)
            args = global_vars.get_args()
            optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "max_lr": 1.0, "min_lr": 0.0}], lr=1.0)
            optimizer.param_groups[0].update(wd_mult=1.0)
            schedule = training.get_optimizer_param_scheduler(optimizer)
            found, consumed = [], 0
            for _ in range(args.train_iters):
                calculator.update_num_microbatches(consumed, consistency_check=True)
                batch = calculator.get_num_microbatches() * args.micro_batch_size * args.data_parallel_size
                consumed += batch
                schedule.step(increment=batch)
                found.append((batch, optimizer.param_groups[0]["lr"]))
            return found, training.get_train_valid_test_num_samples()[0]
        finally:
            global_vars.destroy_global_vars()


def calculated(again: bool, ramp: list[int], settings: dict[str, object]) -> list[int]:
    """Return the batch for every number of consumed sequences, from the calculator that a ramp is given to."""
    common = {"rank": 0, "micro_batch_size": 2, "data_parallel_size": 1}
    calculator.destroy_num_microbatches_calculator()
    try:
        if again:
            calculator.init_num_microbatches_calculator(global_batch_size=2, **common)
            calculator.reconfigure_num_microbatches_calculator(rampup_batch_size=ramp, **common | settings)
        else:
            calculator.init_num_microbatches_calculator(rampup_batch_size=ramp, **common | settings)
        found = []
        for consumed in range(60):
            calculator.update_num_microbatches(consumed, consistency_check=False)
            found.append(calculator.get_current_running_global_batch_size())
        return found
    finally:
        calculator.destroy_num_microbatches_calculator()
