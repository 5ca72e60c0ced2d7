"""Two steps of Megatron-LM's own training code, run on ranks."""

import sys

import torch
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.utils import get_model_config
from megatron.training.argument_utils import core_transformer_config_from_args
from megatron.training.arguments import parse_args, validate_args
from megatron.training.global_vars import set_global_variables, unset_global_variables
from megatron.training.training import setup_model_and_optimizer, train_step

from mb_host.megatron.megatron_lm import HOST_FLAGS, initialize_megatron, set_default_environment

FLAGS = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --lr 1e-3 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 2 --tokenizer-type NullTokenizer --vocab-size 31 "
    "--mock-data --eval-iters 0"
)


def losses(*flags):
    """Return the loss of two steps."""
    set_default_environment()
    sys.argv = ["pretrain_gpt.py", *FLAGS.split(), *HOST_FLAGS, *flags]
    args = parse_args()
    validate_args(args)
    set_global_variables(args)
    try:
        initialize_megatron()
        return list(two_steps(args))
    finally:
        unset_global_variables()


def two_steps(args):
    """Yield the loss of two steps on the same tokens."""

    def model_provider(pre_process=True, post_process=True, **_):
        return GPTModel(
            core_transformer_config_from_args(args),
            get_gpt_layer_local_spec(),
            vocab_size=args.padded_vocab_size,
            max_sequence_length=args.seq_length,
            pre_process=pre_process,
            post_process=post_process,
        )

    def forward_step(_data, model):
        tokens = torch.arange(16).reshape(2, 8)
        output = model(tokens, tokens % 8, None, labels=tokens)
        return output, lambda loss: (
            loss.mean(),
            {"lm loss": torch.stack([loss.detach().mean(), torch.ones(())])},
        )

    chunks, optimizer, scheduler = setup_model_and_optimizer(ModelType.encoder_or_decoder, model_provider)
    config = get_model_config(chunks[0])
    for step in range(2):
        found = train_step(
            forward_step,
            RerunDataIterator(iter(range(8))),
            chunks,
            optimizer,
            scheduler,
            config,
            get_forward_backward_func(),
            iteration=step,
        )
        yield float(found[0]["lm loss"])
