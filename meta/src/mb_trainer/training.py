"""Run from start to end: open the process groups, build the parts, load, train. Imports torch and megatron."""

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from mb_checkpoint import DefaultCheckpointManager, create_checkpoint_manager
from mb_checkpoint.locks import writer_lock
from mb_config import non_default_values
from mb_host.reproducibility import CpuArithmetic, irreproducibility_reasons, read_arithmetic
from mb_launch import barrier, pick_device
from mb_loop import CallbackContext, CallbackManager, TrainOutcome, TrainState
from mb_resilience import IgnoreSignals
from mb_trainer.arrangement import arranged
from mb_trainer.buffers import start_user_buffers
from mb_trainer.checkpointing import write_tokenizer
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Voice
from mb_trainer.data import Vocabulary, build_data, build_splits, build_vocabulary, own_position
from mb_trainer.families import family_of
from mb_trainer.finished import last_checkpoint_of_all
from mb_trainer.graphs import graphs_of_this_process
from mb_trainer.instruments import Instruments
from mb_trainer.job import Job, say_complete
from mb_trainer.layers import choose_layers
from mb_trainer.loading import load
from mb_trainer.mimo_training import who_is_where
from mb_trainer.positions import say_without_position
from mb_trainer.rerunning import build_reruns
from mb_trainer.run import Run
from mb_trainer.run_folder import own
from mb_trainer.state import GlobalState
from mb_trainer.trainee import Trainee
from mb_trainer.watching import watched


def run(job: Job, *, voice: Voice, callbacks: Sequence[object] = ()) -> TrainOutcome:
    """Run a job that passed every check. Collective over the world; the caller exits."""
    config = job.config
    device = pick_device(job.world, external_mapping=config.dist.external_gpu_device_mapping)
    with ExitStack() as stack:
        stack.enter_context(graphs_of_this_process(config))
        ranks = stack.enter_context(arranged(job.world, config, device=device))
        stack.callback(voice.close)
        last = last_checkpoint_of_all(
            config.checkpoint,
            steps=config.train.train_iters or 0,
            seems_there=job.standing == "complete",
        )
        if last is not None:
            return say_complete(job, last.path, voice)
        watch = stack.enter_context(watched(job, voice))
        state = GlobalState(cfg=config, train_state=TrainState(do_train=True))
        CallbackManager(callbacks).fire("on_data_init_start", CallbackContext(state=state, model=[]))
        vocabulary = share_vocabulary(config, voice)
        readers = ranks.readers()
        # a rejection here precedes the cost of building the model
        splits = build_splits(config, vocabulary=vocabulary, groups=readers, say=voice.say)
        manager = create_checkpoint_manager(
            config.checkpoint, write_assets=write_tokenizer(vocabulary), log_outcomes=False
        )
        if isinstance(manager, DefaultCheckpointManager):
            stack.callback(manager.close)
        family = family_of(config.model)
        layers = choose_layers(family, device, wanted=config.model.transformer_impl)
        config.model.transformer_impl = layers.implementation
        instruments = Instruments.start(job)
        start_user_buffers(config)
        built = ranks.build(
            config,
            family=family,
            layers=layers,
            tokenizer_vocab_size=vocabulary.tokenizer.vocab_size,
            device=device,
        )
        trainee, modules = built.trainee, built.modules
        voice.say(describe(job, trainee, device=device, layers=layers.why))
        if device.type == "cpu":
            warn_if_not_reproducible(read_arithmetic(), voice)
        if modules:
            voice.say(who_is_where(modules.groups))
        reruns = build_reruns(config.rerun_state_machine)
        positioned = own_position(config, splits, groups=readers)
        say_without_position(config, positioned, voice=voice)
        load(
            manager,
            state,
            trainee,
            groups=built.stored,
            reruns=reruns,
            voice=voice,
            train_data_iterator=positioned,
        )
        # ckpt_step applied to this load; later reads of these settings resume from the newest checkpoint
        config.checkpoint.ckpt_step = None
        data = build_data(
            config,
            splits,
            groups=readers,
            state=state.train_state,
            worker_init_fn=IgnoreSignals((signal.SIGINT, signal.SIGTERM, config.train.exit_signal)),
            positioned_train=positioned,
        )
        state.train_state.do_valid, state.train_state.do_test = data.has_valid, data.has_test
        stack.enter_context(open_folder(job, voice))
        parts = Run(
            job=job,
            voice=voice,
            groups=ranks.groups,
            stored=built.stored,
            modules=modules,
            family=family,
            trainee=trainee,
            instruments=instruments,
            data=data,
            state=state,
            manager=manager,
            reruns=reruns,
            watch=watch,
        )
        try:
            return parts.train(callbacks)
        except BaseException:
            voice.log(traceback.format_exc())
            raise


@contextmanager
def open_folder(job: Job, voice: Voice) -> Iterator[None]:
    """Create the run folder on rank 0, and log to it from all ranks: the first write of a run. Collective.

    If it cannot be written (an evaluation), nothing is written and no lock is taken.

    Raises:
        RunFolderError: on rank 0, another trainer uses the folder.
        mb_checkpoint.CheckpointFolderError: on rank 0, another one saves in the same folder of checkpoints.
    """
    with ExitStack() as stack:
        if job.unwritable is not None:
            voice.say(f"{job.folder.path}: {job.unwritable}: no log.txt, and no other trainer is kept out")
        elif job.world.rank == 0:
            job.folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(own(job.folder))
            for root in saved_in(job.config):
                stack.enter_context(writer_lock(root, run=str(job.folder.path.absolute())))
            if not job.config.validation.skip_train:
                part = (
                    job.folder.path / "run_config.yaml.part"
                )  # atomic: a kill leaves either the old or the new settings
                job.config.to_yaml(part)
                part.replace(job.folder.run_config)
        if job.world.rank == 0 and job.config.logger.save_config_filepath is not None:
            job.config.to_yaml(job.config.logger.save_config_filepath)
        barrier()
        if job.unwritable is None:
            voice.open_log(job.folder.log)
        if job.world.is_logging_rank:
            voice.log(non_default_values(job.config))
        yield


def saved_in(config: ConfigContainer) -> list[Path]:
    """Return the checkpoint folders of a run that are visible to all nodes; none for an evaluation."""
    section = config.checkpoint
    if section.save is None or config.validation.skip_train:
        return []
    named = (section.save, section.non_persistent_global_ckpt_dir)
    return list(dict.fromkeys(Path(folder).absolute() for folder in named if folder is not None))


def share_vocabulary(config: ConfigContainer, voice: Voice) -> Vocabulary:
    """Prepare data and tokenizer on rank 0 with a progress bar, then load them on the other ranks. Collective."""
    if torch.distributed.get_rank() == 0:
        with voice.progress("preparing data", 1) as bar:
            vocabulary = build_vocabulary(
                config, progress=lambda stage, done, total: bar.update(done, total=total, label=stage)
            )
    barrier()
    if torch.distributed.get_rank() != 0:
        vocabulary = build_vocabulary(config)
    say_dummy_tokens(config.model.vocab_size, tokenizer=vocabulary.tokenizer.vocab_size, voice=voice)
    return vocabulary


def say_dummy_tokens(rows: int | None, *, tokenizer: int, voice: Voice) -> None:
    """Log the number of embedding rows without a token, if the model's vocabulary is larger than the tokenizer's."""
    dummies = 0 if rows is None else rows - tokenizer
    if dummies > 0:
        voice.say(
            f"model.vocab_size={rows} is kept: {dummies} dummy tokens that the tokenizer, of "
            f"{tokenizer} tokens, never makes"
        )


def warn_if_not_reproducible(arithmetic: CpuArithmetic, voice: Voice) -> None:
    """Print the reasons why this run on the CPU is not bitwise reproducible, if there are any."""
    for reason in irreproducibility_reasons(arithmetic):
        voice.say(f"warning: this run cannot be repeated bit for bit. {reason}")


def describe(job: Job, trainee: Trainee, *, device: torch.device, layers: str) -> str:
    """Return one line with the model, the device and the output folder of a run."""
    world = job.world.world_size
    processes = "1 process" if world == 1 else f"{world} processes"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    size = trainee.parameters / 1e6
    return (
        f"{job.name}: {size:.1f} M parameters, {layers}, {processes} on {name}; run folder {job.folder.path}"
    )
