"""Functions that run on a rank of `test_megatron_lm.py`."""

import sys
from contextlib import nullcontext
from unittest.mock import patch

import mb_guard

FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3 --mock-data --vocab-size 100 "
    "--tokenizer-type NullTokenizer --transformer-impl local --no-persist-layer-norm "
    "--position-embedding-type rope --use-rope-scaling --rope-scaling-factor 32"
)


def factor(fault: str | None) -> tuple[bool, float]:
    """Return whether rotary positions are scaled in the model of a command line, and by which factor."""
    with patch.object(sys, "argv", ["pretrain_gpt.py", *FLAGS.split()]):
        from megatron.training import argument_utils
        from megatron.training.arguments import parse_args

        args = parse_args()
    args.params_dtype = None
    with mb_guard.without(fault) if fault else nullcontext():
        config = argument_utils.gpt_config_from_args(args, config=object())
    return config.rope_scaling, config.rope_scaling_factor
