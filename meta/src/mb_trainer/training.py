"""One run from start to end: open, build, load, train, evaluate, say what came of it. Imports torch and megatron."""

import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import (
    CheckpointLoadContext,
    CheckpointManager,
    DefaultCheckpointManager,
    create_checkpoint_manager,
)
from mb_config import non_default_values
from mb_loop import (
    Callback,
    CallbackManager,
    TimeoutAfterFirstStep,
    TrainOutcome,
    TrainState,
    evaluate,
    require_finite_loss,
    should_disable_forward_pre_hook,
    train,
)
from mb_loop.hooks import ForwardPreHooks
from mb_resilience import AgreedStop, SignalWatcher
from mb_trainer.checkpointing import Saves, adapter_filter, write_tokenizer
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Voice
from mb_trainer.data import Data, Vocabulary, build_data, build_vocabulary
from mb_trainer.families import Family, family_of
from mb_trainer.groups import pick_device, process_groups, seed_everything
from mb_trainer.instruments import Instruments
from mb_trainer.job import Job
from mb_trainer.layers import choose_layers
from mb_trainer.measuring import Measured
from mb_trainer.recording import EventRecorder, MetricsRecorder, ProgressBar
from mb_trainer.run_folder import EventLog, LastRow, last_row, own
from mb_trainer.summary import Summary
from mb_trainer.trainee import Trainee, build_trainee


@dataclass(slots=True, kw_only=True)
class GlobalState:
    """What the parts read of a run; passed to them, never found by them."""

    cfg: ConfigContainer
    train_state: TrainState
    start_time: float | None = field(default_factory=time.time)


def run(job: Job, *, voice: Voice, callbacks: Sequence[Callback] = ()) -> TrainOutcome:
    """Run a job that passed every check. Collective over the world; the caller exits."""
    config = job.config
    device = pick_device(job.world, external_mapping=config.dist.external_gpu_device_mapping)
    with ExitStack() as stack:
        groups = stack.enter_context(process_groups(job.world, config, device=device))
        seed_everything(config, groups)
        stack.callback(voice.close)
        vocabulary = share_vocabulary(config, voice)
        family = family_of(config.model)
        layers = choose_layers(family, device, wanted=config.model.transformer_impl)
        config.model.transformer_impl = layers.implementation
        instruments = Instruments.start(job)
        trainee = build_trainee(
            config,
            family=family,
            layers=layers,
            tokenizer_vocab_size=vocabulary.tokenizer.vocab_size,
            device=device,
            groups=groups,
        )
        voice.say(describe(job, trainee, device=device, layers=layers.why))
        state = GlobalState(cfg=config, train_state=TrainState(do_train=True, do_valid=True))
        manager = create_checkpoint_manager(config.checkpoint, write_assets=write_tokenizer(vocabulary))
        if isinstance(manager, DefaultCheckpointManager):
            stack.callback(manager.close)
        load(manager, state, trainee, groups=groups, voice=voice)
        data = build_data(
            config,
            vocabulary=vocabulary,
            groups=groups,
            state=state.train_state,
            worker_init_fn=ignore_signals,
        )
        stack.enter_context(open_folder(job, voice))
        parts = Run(
            job=job,
            voice=voice,
            groups=groups,
            family=family,
            trainee=trainee,
            instruments=instruments,
            data=data,
            state=state,
            manager=manager,
        )
        try:
            return parts.train(callbacks)
        except BaseException:
            voice.log(traceback.format_exc())
            raise


@contextmanager
def open_folder(job: Job, voice: Voice) -> Iterator[None]:
    """Make the run folder on rank 0, and log to it from all ranks: the first thing that is written. Collective.

    Raises:
        RunFolderError: on rank 0, another trainer is at work in the folder.
    """
    with ExitStack() as stack:
        if job.world.rank == 0:
            job.folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(own(job.folder))
            job.config.to_yaml(job.folder.run_config)
            if job.config.logger.save_config_filepath is not None:
                job.config.to_yaml(job.config.logger.save_config_filepath)
        torch.distributed.barrier()
        voice.open_log(job.folder.log)
        if job.world.is_voice:
            voice.log(non_default_values(job.config))
        yield


def share_vocabulary(config: ConfigContainer, voice: Voice) -> Vocabulary:
    """Prepare data and tokenizer on rank 0 with a progress bar, then find them on the others. Collective."""
    if torch.distributed.get_rank() == 0:
        with voice.progress("preparing data", 1) as bar:
            vocabulary = build_vocabulary(
                config, progress=lambda stage, done, total: bar.update(done, total=total, label=stage)
            )
    torch.distributed.barrier()
    return vocabulary if torch.distributed.get_rank() == 0 else build_vocabulary(config)


def describe(job: Job, trainee: Trainee, *, device: torch.device, layers: str) -> str:
    """Say in one line what will be trained, on what, and where it is written."""
    world = job.world.world_size
    processes = "1 process" if world == 1 else f"{world} processes"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    size = trainee.parameters / 1e6
    return (
        f"{job.name}: {size:.1f} M parameters, {layers}, {processes} on {name}; run folder {job.folder.path}"
    )


def load(
    manager: CheckpointManager,
    state: GlobalState,
    trainee: Trainee,
    *,
    groups: ProcessGroupCollection,
    voice: Voice,
) -> None:
    """Go on from the newest whole checkpoint, and say what was taken and what was passed over. Collective."""
    if not manager.has_checkpoint():
        return
    manager.load(
        CheckpointLoadContext(
            state=state,
            model=trainee.chunks,
            optimizer=trainee.optimizer,
            opt_param_scheduler=trainee.scheduler,
            adapter_key_filter=adapter_filter(state.cfg),
            pg_collection=groups,
        )
    )
    peft = state.cfg.peft
    if peft is not None and state.train_state.step == 0:
        peft.start(trainee.chunks)
        trainee.optimizer.reload_model_params()
    if not isinstance(manager, DefaultCheckpointManager) or manager.loaded is None:
        voice.say(f"resumed at step {state.train_state.step}")
        return
    loaded = manager.loaded
    if peft is not None:
        voice.say(f"model under the adapters: {state.cfg.checkpoint.pretrained_checkpoint}")
    for passed in loaded.passed_over:
        voice.say(f"passed over {passed.path}: {passed.reason}")
    for note in loaded.notes:
        voice.say(note)
    if loaded.source == "weights":
        voice.say(f"weights from {loaded.path}")
    else:
        voice.say(f"resumed from {loaded.path} at step {loaded.step}")


def ignore_signals(worker: int) -> None:
    """Leave Ctrl-C and termination to the training process: it stops its data workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def begin(events: EventLog, job: Job, *, step: int, before: LastRow | None) -> None:
    """Write that the run starts or goes on, how long that took, and up to where it was before."""
    known: dict[str, Any] = {"recipe": job.name, "seconds": time.time() - psutil.Process().create_time()}
    if step and before is not None:
        known |= {"previous_step": before.step, "previous_time": before.time}
    events.write("resume" if step else "start", step=step, **known)


def nothing(event: str, **fields: object) -> None:
    """Write no event: another rank does."""


def announce_stop(name: str) -> None:
    """Tell a person at once that the signal has arrived; the step under way is finished first. Safe in a handler."""
    os.write(1, f"\n{name}: stopping after this step (Ctrl-C again: at once)\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts of a run, ready to train."""

    job: Job
    voice: Voice
    groups: ProcessGroupCollection
    family: Family
    trainee: Trainee
    instruments: Instruments
    data: Data
    state: GlobalState
    manager: CheckpointManager

    def train(self, callbacks: Sequence[Callback]) -> TrainOutcome:
        """Train, evaluate on the test split, and print the summary."""
        config, counters = self.job.config, self.state.train_state
        events = EventLog(self.job.folder.events)
        summary = Summary()
        own: list[Callback] = [summary]
        with ExitStack() as stack:
            watcher = stack.enter_context(
                SignalWatcher(
                    (signal.SIGINT, config.train.exit_signal),
                    same_press_seconds=1.0,
                    announce=announce_stop if self.job.world.is_voice else None,
                )
            )
            before = last_row(self.job.folder.metrics)
            measured = self.measured()
            stack.enter_context(measured.metrics)
            total = config.train.train_iters or 0
            bar = stack.enter_context(self.voice.progress("training", total, done=counters.step))
            saves = self.saves(events, measured)
            recorder = MetricsRecorder(measured, loss_scale=config.model.fp16, extra=lambda: saves.values)
            own += [recorder, ProgressBar(bar), *self.after_first_step()]
            if self.job.world.is_voice:
                begin(events, self.job, step=counters.step, before=before)
                own.append(EventRecorder(events))
            heard = CallbackManager([*own, *callbacks])
            self.instruments.watch(self.trainee.chunks, heard)
            check_loss = config.rerun_state_machine.check_for_nan_in_loss
            outcome = train(
                self.family.forward_step(inspect_loss=require_finite_loss if check_loss else None),
                self.trainee.chunks,
                self.trainee.optimizer,
                self.trainee.scheduler,
                self.data.train,
                self.data.valid,
                self.state,
                callbacks=heard,
                checkpointer=saves,
                exit_wish=self.agreed_stop(watcher),
                flops=measured.operations,
                **self.schedule(),
            )
            test_losses = self.test(heard) if outcome.reason == "finished" else {}
        for line in summary.lines(
            outcome,
            test_losses=test_losses,
            folder=self.job.folder,
            checkpoints=config.checkpoint.save,
            resume_command=self.job.resume_command,
        ):
            self.voice.say(line)
        torch.distributed.barrier()
        return outcome

    def test(self, heard: CallbackManager) -> dict[str, float]:
        """Evaluate on the test split, where there is one. Collective."""
        if self.data.test is None and self.groups.pp.size() == 1:
            return {}
        return evaluate(
            self.family.forward_step(),
            self.data.test,
            self.trainee.chunks,
            self.state,
            callbacks=heard,
            kind="test",
            **self.schedule(),
        )

    def after_first_step(self) -> list[Callback]:
        """Return what sets the shorter time-out of collectives once a step has been made, if one is asked for."""
        seconds = self.job.config.dist.distributed_timeout_seconds_after_init
        return [] if seconds is None else [TimeoutAfterFirstStep(seconds)]

    def schedule(self) -> dict[str, Any]:
        """Return Megatron's schedule for this layout, with its groups and pipeline communication."""
        sizes = self.groups.pp.size(), self.job.config.model.virtual_pipeline_model_parallel_size
        return {
            "forward_backward_func": get_forward_backward_func(*sizes),
            "pg_collection": self.groups,
            "p2p_communicator": P2PCommunicator(self.groups.pp, self.trainee.transformer),
        }

    def saves(self, events: EventLog, measured: Measured) -> Saves:
        """Return what writes the checkpoints, and says how that went."""
        ddp = self.job.config.ddp
        hooks = ForwardPreHooks(
            self.trainee.chunks,
            used=should_disable_forward_pre_hook(
                ddp.use_megatron_fsdp, ddp.use_distributed_optimizer, ddp.overlap_param_gather
            ),
        )
        return Saves(
            self.manager,
            state=self.state,
            trainee=self.trainee,
            groups=self.groups,
            say=self.voice.say,
            events=events.write if self.job.world.is_voice else nothing,
            pause=measured.pause,
            whole=hooks.paused,
        )

    def agreed_stop(self, watcher: SignalWatcher) -> AgreedStop:
        """Return what asks, after each step, whether any rank got a signal; host-side, through the store."""
        world = self.job.world
        store = torch.distributed.distributed_c10d._get_default_store() if world.world_size > 1 else None
        return AgreedStop(
            watcher, store=store, rank=world.rank, world_size=world.world_size, attempt=world.attempt
        )

    def measured(self) -> Measured:
        """Return the metrics of this rank, which goes on after the steps that are done."""
        return Measured(
            self.job,
            voice=self.voice,
            groups=self.groups,
            chunks=self.trainee.chunks,
            device=next(self.trainee.chunks[0].parameters()).device,
            step=self.state.train_state.step,
            vocab_size=self.trainee.vocab_size,
        )
