"""Benchmark of the host's work for a microbatch: our step next to Megatron Core's own `train_step`, on a CPU.

A GPT-2 whose layers are so small that their arithmetic takes next to no time: what is measured is Python and the calls
of kernels, which is what holds up a GPU without CUDA graphs. Both steps run in one process, in turn, with equal layers,
batches, optimizer (distributed, AdamW), clipping and precision; Megatron's is that of `megatron.training`, as the peer
of tests/gpu/first_run sets it up. Ours is everything between the end of two steps: data, metrics, checks and callbacks.

Median and minimum of the processor time of a step, in milliseconds, and per microbatch. On a shared machine the ratio
is meaningful.

    python meta/benchmarks/bench_host.py [--steps 20] [--layers 24] [--microbatches 8]
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import torch

import mb_host

mb_host.install()
mb_host.quiet()
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "gpu" / "first_run" / "peers"))

import megatron_lm as peer  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.utils import get_model_config  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402
from megatron.training.global_vars import set_global_variables  # noqa: E402
from megatron.training.training import setup_model_and_optimizer, train_step  # noqa: E402

import mb_trainer  # noqa: E402
from mb_trainer.recipes.one_gpu import gpt_350m  # noqa: E402

HIDDEN, HEADS, SEQUENCE, VOCABULARY = 16, 2, 8, 128


class MegatronTraining:
    """Megatron's step on the shape, in the process groups of the trainer."""

    def __init__(self, shape):
        sys.argv[1:] = peer.flags_of(shape)
        args = parse_args()
        validate_args(args)
        set_global_variables(args)
        chunks, optimizer, scheduler = setup_model_and_optimizer(
            ModelType.encoder_or_decoder, peer.model_provider
        )
        positions = torch.arange(shape.seq_length).expand(shape.micro_batch_size, -1)

        def forward_step(data, model):
            batch = next(data)
            return model(batch["tokens"], positions, None, labels=batch["labels"]), peer.loss_function

        config, data = get_model_config(chunks[0]), RerunDataIterator(peer.batches(shape))
        schedule, numbers = get_forward_backward_func(), count()
        step = partial(train_step, forward_step, data, chunks, optimizer, scheduler, config, schedule)
        self.step = lambda: step(iteration=next(numbers))


class InTurn:
    """Callback that times each step of the trainer, and makes a timed step of Megatron's after it."""

    def __init__(self, shape, *, warmup):
        self.shape, self.left, self.other, self.mark = shape, warmup, None, None
        self.taken = {"trainer": [], "Megatron": []}

    def on_train_step_end(self, context):
        """Record the step that ended, then one of Megatron's."""
        self._record("trainer")
        if self.other is None:
            self.other = MegatronTraining(self.shape)
        self.mark = time.process_time()
        self.other.step()
        self._record("Megatron")
        self.left -= 1
        self.mark = time.process_time()

    def _record(self, name):
        if self.mark is not None and self.left <= 0:
            self.taken[name].append(1e3 * (time.process_time() - self.mark))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = SimpleNamespace(
        layers=options.layers,
        hidden=HIDDEN,
        heads=HEADS,
        seq_length=SEQUENCE,
        vocab_size=VOCABULARY,
        micro_batch_size=1,
        global_batch_size=options.microbatches,
        ffn=None,
    )
    config = gpt_350m()
    config.model.num_layers, config.model.hidden_size = shape.layers, HIDDEN
    config.model.num_attention_heads, config.model.seq_length = HEADS, SEQUENCE
    config.model.vocab_size = config.tokenizer.vocab_size = VOCABULARY
    config.dataset.seq_length, config.dataset.num_workers = SEQUENCE, 0
    config.train.micro_batch_size, config.train.global_batch_size = 1, options.microbatches
    config.train.train_iters = options.steps + options.warmup
    config.mixed_precision = "bf16_mixed"
    config.optimizer.use_distributed_optimizer = config.ddp.use_distributed_optimizer = True
    config.validation.eval_interval, config.checkpoint.save_interval = None, None
    config.scheduler.lr_warmup_iters = 2
    in_turn = InTurn(shape, warmup=options.warmup)
    with tempfile.TemporaryDirectory() as folder:
        mb_trainer.pretrain(config, callbacks=[in_turn], out=f"{folder}/run")
    print(f"{'':10}{'step: median':>14}{'minimum':>9}{'microbatch: median':>20}")
    for name, taken in in_turn.taken.items():
        middle = statistics.median(taken)
        print(f"{name:10}{middle:>14.1f}{min(taken):>9.1f}{middle / options.microbatches:>20.2f}")
    ours, theirs = (statistics.median(taken) for taken in in_turn.taken.values())
    print(f"ratio {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
