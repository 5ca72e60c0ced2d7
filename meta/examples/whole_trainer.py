"""A whole trainer from its parts, without mb_trainer, to be read from top to bottom.

    python whole_trainer.py runs/own train.train_iters=50
    torchrun --nproc-per-node 2 whole_trainer.py runs/own model.tensor_model_parallel_size=2

The same command resumes a run that was stopped by a signal, or killed, with the numbers of an undisturbed one. Any part
can be replaced by your own: no package knows another one, and each call names the package that it needs.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported: takes the CPU where there is no GPU; with a GPU nothing changes
mb_guard.install(quiet=True)  # corrects known faults of the installed Megatron Core

import mb_checkpoint
import mb_config
import mb_data
import mb_launch
import mb_loop
import mb_metrics
import mb_models
import mb_resilience

# 1. Configuration: a dataclass with a section for each part, and overrides in Hydra's grammar. Read from a file it is
#    Config.from_yaml("run.yaml"); a custom section is one more field.


@dataclass(kw_only=True)
class Config(mb_config.ConfigContainer):
    """Sections of mb-config (train, optimizer, scheduler, ddp, validation, dist, rng), and those of the other parts."""

    model: mb_models.GPTModelConfig
    dataset: mb_data.TextCorpusConfig
    tokenizer: mb_data.TokenizerConfig
    logger: mb_metrics.LoggerConfig
    checkpoint: mb_checkpoint.CheckpointConfig

    def installed_rules(self) -> Iterable[mb_config.Rule]:
        """Return the rules that a resolved configuration has to satisfy."""
        return [*mb_config.RULES, *mb_models.RULES, *mb_data.RULES, *mb_loop.RULES, *mb_metrics.RULES]


def configure(folder: Path, overrides: Sequence[str], *, world_size: int) -> Config:
    """Return the configuration of a small GPT on the sources of Python's standard library, checked and resolved."""
    checkpoints = str(folder / "checkpoints")
    config = Config(
        train=mb_config.TrainingConfig(train_iters=300, global_batch_size=8, micro_batch_size=4),
        validation=mb_config.ValidationConfig(eval_interval=100, eval_iters=8),
        model=mb_models.GPTModelConfig(
            num_layers=4, hidden_size=256, ffn_hidden_size=640, num_attention_heads=8, num_query_groups=4,
            seq_length=256, position_embedding_type="rope", normalization="RMSNorm", gated_linear_unit=True,
            activation_func="silu", add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
            calculate_per_token_loss=True,
        ),
        optimizer=mb_config.OptimizerConfig(lr=2e-3, min_lr=2e-4, adam_beta2=0.95, weight_decay=0.1),
        scheduler=mb_config.SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=20),
        ddp=mb_config.DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=mb_data.TextCorpusConfig(
            seq_length=256, vocab_size=4096, dataloader_type="single", num_workers=0
        ),
        tokenizer=mb_data.TokenizerConfig(),  # a text corpus without one trains its own
        logger=mb_metrics.LoggerConfig(log_interval=10, log_throughput=True, tensorboard_dir=None),
        checkpoint=mb_checkpoint.CheckpointConfig(save=checkpoints, load=checkpoints, save_interval=100),
    )  # fmt: skip
    mb_config.apply_overrides(config, overrides)
    mb_config.runtime_config_update(config, world_size=world_size)
    return config


# 2. Data and model, each from its section and the process groups. Both are Megatron Core's, and so are the objects that
#    come back: a custom optimizer or data iterator fits in the same place.


def build_data(config: Config, groups: Any) -> tuple[mb_data.RunLoaders, int]:
    """Return the loaders of this rank, still without a position, and the size of the vocabulary. Collective."""
    tokenizer = mb_data.prepare_tokenizer(config.dataset, config.tokenizer)
    samples = mb_data.run_sample_counts(config.train, config.validation)
    ranks = mb_data.DataRanks.of(groups)
    context = mb_data.DatasetBuildContext(
        train_samples=samples.train,
        valid_samples=samples.valid,
        test_samples=samples.test,
        tokenizer=tokenizer,
        pg_collection=groups,
        reads_data=ranks.reads_data,
    )
    datasets = mb_data.build_run_datasets(config.dataset, context)
    batches = mb_data.run_batch_settings(
        config.train,
        config.validation,
        model_chunks=config.model.virtual_pipeline_model_parallel_size,
        seed=config.rng.seed,
    )
    return datasets.loaders(batches, ranks=ranks), tokenizer.vocab_size


def build_model(config: Config, groups: Any, *, vocab_size: int, device: Any) -> mb_models.TrainingModel:
    """Return model, optimizer and scheduler, connected with each other and with Megatron's schedule. Collective."""
    steps = mb_config.scheduler_steps(
        config.train,
        config.scheduler,
        data_parallel_size=config.data_parallel_size,
        seq_length=config.model.seq_length,
    )
    return mb_models.build_training_model(
        config.model,
        groups=groups,
        ddp=mb_models.DataParallelSetup(config=mb_config.to_megatron(config.ddp)),
        optimizer=mb_models.OptimizerSetup(
            config=mb_config.to_megatron(config.optimizer),
            scheduler=partial(
                mb_config.build_scheduler,
                scheduler=config.scheduler,
                optimizer_config=config.optimizer,
                steps=steps,
            ),
        ),
        device=device,
        tokenizer_vocab_size=vocab_size,
    )


# 3. The run. Every rank calls it.


def main(
    folder: Path, overrides: Sequence[str] = (), callbacks: Sequence[object] = ()
) -> mb_loop.TrainOutcome:
    """Train from the newest checkpoint in the folder, or from the start, and evaluate at the end."""
    world = mb_launch.read_world(os.environ)
    config = configure(folder, overrides, world_size=world.world_size)
    device = mb_launch.pick_device(world)

    def log(line: str) -> None:
        # the last rank: under pipeline parallelism it is the one that knows the loss
        if world.is_logging_rank:
            print(line, flush=True)

    with ExitStack() as stack:
        stack.enter_context(mb_launch.default_process_group(world, device=device))
        groups = stack.enter_context(mb_launch.megatron_groups(config.model, config.dist))
        mb_launch.seed_model_parallel(config.rng, groups, deterministic=config.model.deterministic_mode)

        loaders, vocab_size = build_data(config, groups)
        training = build_model(config, groups, vocab_size=vocab_size, device=device)

        # A checkpoint holds model, optimizer, scheduler, random states, callbacks with a state, and the counters in
        # `state`. The data are opened after it is loaded: their position is the number of samples in these counters.
        state = mb_loop.LoopState(cfg=config)
        checkpointer = mb_checkpoint.RunCheckpointer(
            mb_checkpoint.create_checkpoint_manager(config.checkpoint, log_outcomes=False),
            state=state,
            model=training.chunks,
            optimizer=training.optimizer,
            scheduler=training.scheduler,
            groups=groups,
            callbacks=mb_checkpoint.stateful_callbacks(callbacks),
            log=log,
        )
        checkpointer.load()
        data = loaders.resume(state.train_state)
        stack.callback(data.close)

        # Loss, throughput and MFU: to the console, and to metrics.jsonl in the folder. Rows after the loaded step are
        # dropped, so that a run that was killed leaves no row twice.
        output = mb_metrics.MetricsOutput(folder=folder) if world.is_logging_rank else None
        recorders = stack.enter_context(
            mb_metrics.record_run(
                config, training, output=output, start_step=state.train_state.step, print_line=log
            )
        )
        # A signal to any rank stops all of them after the same step, with a checkpoint.
        stops = stack.enter_context(
            mb_resilience.watch_stop_requests(
                config.train,
                world=world,
                store=mb_launch.default_store(world),
                launched=mb_launch.is_launched(os.environ),
            )
        )

        parts = mb_loop.TrainParts(
            forward_step_func=training.forward_step(),
            model=training.chunks,
            optimizer=training.optimizer,
            scheduler=training.scheduler,
            train_data_iterator=data.train,
            valid_data_iterator=data.valid,
            test_data_iterator=data.test,
            **training.schedule,
            callbacks=[*recorders.callbacks, *callbacks],
            checkpointer=checkpointer,
            stop_requested=stops.stop_requested,
            stop_evaluation=stops.stop_evaluation,
            flops=recorders.metrics.flops,
        )
        outcome = mb_loop.train(parts, state)
        if outcome.reason in ("finished", "early_stop"):  # an `EarlyStopping` may be among the callbacks
            mb_loop.evaluate_after_training(parts, state, validated=outcome.validated, write=log)
        log(outcome.message)
    return outcome


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]).exit_code)
