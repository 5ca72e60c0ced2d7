"""Arguments of a program that is compared, and its measurement by the callback of `mb bench`.

A further program for `first_run.py --peers DIR` takes the same arguments: `--layers --hidden --heads --seq-length
--vocab-size --micro-batch-size --global-batch-size`, of a GPT-2 with learned positions, LayerNorm with biases, GELU of
four times the width, and an output layer tied to the embedding; with `--ffn` of a Llama: RMSNorm, rotary positions, a
gated MLP of that width, no biases, and an output layer of its own. It calls `measure_steps` with a function that makes
one step and returns its loss as a tensor, without waiting for the GPU.
"""

import argparse
import os
from collections.abc import Callable
from types import SimpleNamespace

from torch import Tensor

from mb_metrics import gpt_flops_per_token
from mb_metrics.bench.request import BenchRequest, bench_callbacks


def read_arguments() -> argparse.Namespace:
    """Return the shape."""
    parser = argparse.ArgumentParser()
    for name in (
        "layers",
        "hidden",
        "heads",
        "seq-length",
        "vocab-size",
        "micro-batch-size",
        "global-batch-size",
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--ffn", type=int)
    return parser.parse_args()


def measure_steps(shape: argparse.Namespace, step: Callable[[], Tensor]) -> None:
    """Make as many steps as the environment requests, and write what was measured."""
    request = BenchRequest.from_environment(os.environ)
    if request is None:
        raise SystemExit("start this program by `mb-metrics bench`")
    flops = gpt_flops_per_token(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn or 4 * shape.hidden,
        gated_mlp=shape.ffn is not None,
        num_attention_heads=shape.heads,
        seq_length=shape.seq_length,
        vocab_size=shape.vocab_size,
    ).total
    tokens = shape.global_batch_size * shape.seq_length
    counters = SimpleNamespace(floating_point_operations_so_far=0.0)
    model = SimpleNamespace(fp4=None, fp8=None, params_dtype="bfloat16")
    context = SimpleNamespace(
        state=SimpleNamespace(train_state=counters, cfg=SimpleNamespace(model=model)), result=None
    )
    (recorder,) = bench_callbacks(os.environ)
    recorder.on_train_start(context)
    for _ in range(request.length):
        loss = step()
        counters.floating_point_operations_so_far += flops * tokens
        context.result = SimpleNamespace(losses={"lm loss": loss.detach()}, tokens=tokens)
        recorder.on_train_step_end(context)
    recorder.on_train_end(context)
