"""A training script on Megatron-LM's own code that takes metrics, checkpoints, a stop and a hang report from here.

    python train.py --train-iters 20 --save runs/lm --load runs/lm
    torchrun --nproc-per-node 2 train.py --tensor-model-parallel-size 2 --train-iters 20 --save runs/lm --load runs/lm

It runs on a CPU or on GPUs. Each of the four parts is marked by a comment, and can be used without the others.
"""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported; with a GPU, torch is not changed
mb_guard.install()  # known faults of Megatron Core

import torch
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.utils import get_model_config
from megatron.training.argument_utils import core_transformer_config_from_args
from megatron.training.arguments import parse_args, validate_args
from megatron.training.global_vars import get_args, set_global_variables
from megatron.training.training import setup_model_and_optimizer, train_step

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager, RunCheckpointer
from mb_host.megatron.megatron_lm import HOST_FLAGS, initialize_megatron, set_default_environment
from mb_metrics import ConsoleSink, JsonlSink, Metrics, training_log
from mb_resilience import AgreedStop, HangReporter, SignalWatcher, rank_and_store

DEFAULTS = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *(
        "--max-position-embeddings",
        "32",
        "--micro-batch-size",
        "2",
        "--global-batch-size",
        "8",
        "--lr",
        "1e-3",
    ),
    *(
        "--lr-decay-style",
        "constant",
        "--tokenizer-type",
        "NullTokenizer",
        "--vocab-size",
        "63",
        "--log-interval",
        "5",
    ),
    *("--mock-data", "--eval-iters", "0", "--save-interval", "10"),
)
"""A tiny model. Flags of the command line take precedence."""


@dataclass(kw_only=True)
class Counters:
    """Counters that checkpoints store."""

    step: int = 0
    consumed_train_samples: int = 0
    floating_point_operations_so_far: float = 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the counters."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the counters."""
        self.step, self.consumed_train_samples = int(state["step"]), int(state["consumed_train_samples"])


class Arguments:
    """Megatron-LM's arguments as the configuration that checkpoints store."""

    def to_yaml(self, path: str) -> None:
        """Write the arguments. JSON is YAML as well."""
        Path(path).write_text(json.dumps(vars(get_args()), indent=1, default=str))


@dataclass(kw_only=True)
class State:
    """State of the run outside of model and optimizer."""

    train_state: Counters
    cfg: Arguments


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    **_: Any,
) -> GPTModel:
    """Build a GPT, as `pretrain_gpt.py` does."""
    args = get_args()
    return GPTModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        vp_stage=vp_stage,
    )


def batches(step: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield microbatches of increasing numbers, from a step on: the same after a resume."""
    args = get_args()
    while True:
        random = torch.Generator().manual_seed(step)
        for _ in range(args.global_batch_size // args.micro_batch_size // args.data_parallel_size):
            start = torch.randint(0, 63, (args.micro_batch_size, 1), generator=random)
            tokens = (start + torch.arange(args.seq_length + 1)) % 63
            yield {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
        step += 1


def loss_function(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss of a microbatch, and what is logged: its sum and its weight."""
    loss = output.float().mean()
    return loss, {"lm loss": torch.stack([loss.detach(), torch.ones_like(loss)])}


def forward_step(data: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """Run one microbatch, as `pretrain_gpt.py` does."""
    batch = {name: part.to(torch.cuda.current_device()) for name, part in next(data).items()}
    positions = torch.arange(batch["tokens"].shape[1], device=batch["tokens"].device).expand_as(
        batch["tokens"]
    )
    return model(batch["tokens"], positions, None, labels=batch["labels"]), loss_function


def main() -> None:
    """Train until `--train-iters`, or until SIGTERM."""
    set_default_environment()
    host = () if torch.cuda.is_available() else HOST_FLAGS
    sys.argv[1:] = [*DEFAULTS, *host, *sys.argv[1:]]
    args = parse_args()
    validate_args(args)
    set_global_variables(args)
    initialize_megatron()
    checkpoints = CheckpointConfig(save=args.save, load=args.load)
    args.save = args.load = None  # mb-checkpoint reads and writes the checkpoints
    chunks, optimizer, scheduler = setup_model_and_optimizer(ModelType.encoder_or_decoder, model_provider)
    config, schedule = get_model_config(chunks[0]), get_forward_backward_func()
    state, totals, report_memory = State(train_state=Counters(), cfg=Arguments()), {}, False

    # checkpoints: a RunCheckpointer in place of load_checkpoint and save_checkpoint
    rank = torch.distributed.get_rank()
    report = print if rank == 0 else lambda _text: None
    manager = DefaultCheckpointManager(checkpoints, log_outcomes=False)
    saver = RunCheckpointer(
        manager,
        state=state,
        model=chunks,
        optimizer=optimizer,
        scheduler=scheduler,
        megatron_arguments=vars(args),  # with them, Megatron-LM resumes these checkpoints as well
        log=report,
    )
    saver.load()
    counters = state.train_state
    data = RerunDataIterator(batches(counters.step))

    sinks = (
        [ConsoleSink(), JsonlSink(Path(checkpoints.save or "runs/lm") / "metrics.jsonl")] if rank == 0 else []
    )
    with (
        Metrics(sinks, log_interval=args.log_interval, total_steps=args.train_iters) as metrics,
        # hang report: which rank makes no progress, and where
        HangReporter(seconds=300, **rank_and_store(of_thread=True)) as progress,
        SignalWatcher((signal.SIGTERM,)) as watcher,
    ):
        # agreed stop: all ranks end after the same step
        stop = AgreedStop(watcher, **rank_and_store())
        log = partial(training_log, metrics=metrics, args=args, model=chunks)
        while counters.step < args.train_iters:
            losses, skipped, _, _, _, grad_norm, zeros, logit, *_ = train_step(
                forward_step, data, chunks, optimizer, scheduler, config, schedule, iteration=counters.step
            )
            counters.step += 1
            counters.consumed_train_samples += args.global_batch_size
            args.consumed_train_samples = counters.consumed_train_samples
            rate = optimizer.param_groups[0]["lr"]
            # metrics: training_log of mb-metrics with the arguments of Megatron-LM's
            report_memory = log(
                losses,
                totals,
                rate,
                counters.step,
                1.0,
                report_memory,
                skipped,
                grad_norm,
                None,
                zeros,
                logit or None,
            )
            progress.note("step", counters.step)
            reason = stop(counters.step)
            if reason or counters.step % args.save_interval == 0 or counters.step == args.train_iters:
                saver.save(counters.step, non_persistent=False)
            if reason:
                report(f"stopped after step {counters.step}: {reason}")
                break
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
