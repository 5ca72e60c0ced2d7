"""Megatron Core's own `train_step`, from `megatron.training` of the installed wheel, with the flags for one GPU."""

import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import mb_host

mb_host.install()  # before megatron is imported; with a GPU, torch is not changed

import torch  # noqa: E402
from measured import measure_steps, read_arguments  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs as specs  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.utils import get_model_config  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402
from megatron.training.global_vars import get_args, set_global_variables  # noqa: E402
from megatron.training.training import setup_model_and_optimizer, train_step  # noqa: E402

from mb_host.megatron.megatron_lm import HOST_FLAGS, initialize_megatron, set_default_environment  # noqa: E402

GPU_FLAGS = (
    *("--transformer-impl", "transformer_engine"),
    "--use-distributed-optimizer",
    "--cross-entropy-loss-fusion",
    *("--attention-backend", "auto"),
    *("--manual-gc", "--manual-gc-interval", "100"),
    "--no-check-for-nan-in-loss-and-grad",
    *("--rerun-mode", "disabled"),
)
"""Megatron-LM's documented flags for speed on one GPU. It rejects the loss of Transformer Engine."""


def flags_of(shape: Any) -> list[str]:
    """Return Megatron-LM's arguments for a shape."""
    numbers = {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "num-attention-heads": shape.heads,
        "seq-length": shape.seq_length,
        "max-position-embeddings": shape.seq_length,
        "micro-batch-size": shape.micro_batch_size,
        "global-batch-size": shape.global_batch_size,
        "vocab-size": shape.vocab_size,
        "train-iters": 1000,
        "lr": 3e-4,
        "min-lr": 3e-5,
        "lr-warmup-iters": 2,
        "clip-grad": 1.0,
        "weight-decay": 0.1,
        "adam-beta2": 0.95,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "make-vocab-size-divisible-by": 1,
        "eval-iters": 0,
    }
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    words += ["--tokenizer-type", "NullTokenizer", "--lr-decay-style", "cosine", "--mock-data", "--bf16"]
    if not torch.cuda.is_available():
        return [*words, *HOST_FLAGS]
    if find_spec("fused_weight_gradient_mlp_cuda") is None:
        words.append("--no-gradient-accumulation-fusion")
    return [*words, *GPU_FLAGS]


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    **_: Any,
) -> GPTModel:
    """Build a GPT, as `pretrain_gpt.py` does."""
    args = get_args()
    engine = args.transformer_impl == "transformer_engine"
    layers = specs.get_gpt_layer_with_transformer_engine_spec if engine else specs.get_gpt_layer_local_spec
    return GPTModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=layers(),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=True,
        vp_stage=vp_stage,
    )


def batches(shape: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield microbatches of tokens that count up from a random one, on the device."""
    device = torch.cuda.current_device()
    line = torch.arange(shape.seq_length + 1, device=device)
    while True:
        start = torch.randint(shape.vocab_size, (shape.micro_batch_size, 1), device=device)
        tokens = (start + line) % shape.vocab_size
        yield {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def loss_function(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss of a microbatch, and what is logged: its sum and its weight."""
    loss = output.float().mean()
    return loss, {"lm loss": torch.stack([loss.detach(), torch.ones_like(loss)])}


def main() -> None:
    """Measure the requested steps."""
    shape = read_arguments()
    set_default_environment()
    sys.argv[1:] = flags_of(shape)
    args = parse_args()
    validate_args(args)
    set_global_variables(args)
    if args.padded_vocab_size != shape.vocab_size:
        raise SystemExit(f"the embedding has {args.padded_vocab_size} rows instead of {shape.vocab_size}")
    initialize_megatron()
    chunks, optimizer, scheduler = setup_model_and_optimizer(ModelType.encoder_or_decoder, model_provider)
    config, schedule = get_model_config(chunks[0]), get_forward_backward_func()
    positions = torch.arange(shape.seq_length, device=torch.cuda.current_device())
    positions = positions.expand(shape.micro_batch_size, -1)

    def forward_step(data: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple[Any, Any]:
        batch = next(data)
        return model(batch["tokens"], positions, None, labels=batch["labels"]), loss_function

    data = RerunDataIterator(batches(shape))
    step = partial(train_step, forward_step, data, chunks, optimizer, scheduler, config, schedule)
    count = iter(range(1_000_000))
    measure_steps(shape, lambda: step(iteration=next(count))[0]["lm loss"])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
