"""Shared state of a run."""

import os
import time
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from mb_data import load_tokenizer
from mb_launch import read_world
from mb_loop import TrainState
from mb_metrics.trainer_api import open_comet, open_mlflow, open_tensorboard, open_wandb
from mb_trainer.config import ConfigContainer

if TYPE_CHECKING:
    from mb_loop import DistributedSignalHandler


class _OfConfiguration(cached_property[Any]):
    """Property that is made of the configuration at its first access; None, and not kept, before there is one."""

    def __get__(self, state: Any, owner: Any = None) -> Any:
        return None if state is not None and state.cfg is None else super().__get__(state, owner)


class GlobalState:
    """State that the parts of a run share; passed explicitly, never through a global variable.

    The parts read `cfg`, `train_state` and `start_time`. The other attributes are those of Megatron-Bridge, for forward
    steps and callbacks of the user: each is made at its first access, may be assigned, and is kept until
    `reset_for_restart`. Without a configuration the loggers and `energy_monitor` are None, and the tokenizer, the
    timers and the signal handler are an AttributeError.

    Args:
        cfg: The configuration; None: it is assigned later.
        train_state: The counters; None: those before the first step.
        start_time: Seconds since the epoch when the job began.
    """

    rank_monitor_client: Any = None
    """Connection to the monitor of ft_launcher, if the user opens one; that of the trainer is its own."""
    checkpoint_manager: Any = None
    """Manager of saves and loads by `mb_trainer.bridge.training.checkpointing`; None until the first one."""
    async_calls_queue: Any = None
    """Megatron's queue of background saves; None: the checkpoint manager saves in the background without it."""

    def __init__(
        self,
        *,
        cfg: ConfigContainer | None = None,
        train_state: TrainState | None = None,
        start_time: float | None = None,
    ) -> None:
        self._cfg = cfg
        self.train_state = TrainState() if train_state is None else train_state
        self.start_time: float | None = time.time() if start_time is None else start_time

    @property
    def cfg(self) -> ConfigContainer:
        """Configuration; None until it is assigned.

        With `train.exit_signal_handler`, assigning it enters `signal_handler`, which is collective.
        """
        return cast("ConfigContainer", self._cfg)

    @cfg.setter
    def cfg(self, config: ConfigContainer | None) -> None:
        self._cfg = config
        if config is not None:
            self.signal_handler  # noqa: B018 - entered now, so that no signal is missed

    @property
    def _settings(self) -> ConfigContainer:
        if self._cfg is None:
            raise AttributeError(
                "state.cfg: is None, and this attribute is made of the configuration. Assign state.cfg first."
            )
        return self._cfg

    @cached_property
    def signal_handler(self) -> "DistributedSignalHandler | None":
        """Entered handler of `train.exit_signal`; None without `train.exit_signal_handler`."""
        train = self._settings.train
        if not train.exit_signal_handler:
            return None
        handler: DistributedSignalHandler = import_module("mb_loop").DistributedSignalHandler(
            train.exit_signal
        )
        return handler.__enter__()

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of the configuration."""
        return load_tokenizer(self._settings.tokenizer)

    @cached_property
    def timers(self) -> Any:
        """Megatron's timers, at the level of `logger.timing_log_level`; nothing writes them but the user's code."""
        logger = self._settings.logger
        return import_module("megatron.core.timers").Timers(logger.timing_log_level, logger.timing_log_option)

    @cached_property
    def straggler_timer(self) -> Any:
        """Megatron's StragglerDetector, which measures once it is configured; the trainer's own needs no calls."""
        return import_module("megatron.core.utils").StragglerDetector()

    @_OfConfiguration
    def energy_monitor(self) -> Any:
        """Megatron's EnergyMonitor; None without `logger.log_energy`."""
        monitor = import_module("megatron.core.energy_monitor").EnergyMonitor
        return monitor() if self.cfg.logger.log_energy else None

    @_OfConfiguration
    def tensorboard_logger(self) -> Any:
        """SummaryWriter in `logger.tensorboard_dir`; None without it, and on all ranks but the last."""
        return open_tensorboard(self.cfg.logger) if self._logs else None

    @_OfConfiguration
    def wandb_logger(self) -> Any:
        """Module wandb with an active run; None without `logger.wandb_project`, and on all ranks but the last.

        Opens a run unless there is one.
        """
        if not self._logs:
            return None
        save = self.cfg.checkpoint.save
        folder = None if save is None else f"{save}/wandb"
        return open_wandb(self.cfg.logger, folder=folder, config=self.cfg.to_dict())

    @_OfConfiguration
    def mlflow_logger(self) -> Any:
        """Module mlflow with an active run; None without `logger.mlflow_experiment`, and on all ranks but the last.

        Opens a run unless there is one.
        """
        return open_mlflow(self.cfg.logger, config=self.cfg.to_dict()) if self._logs else None

    @_OfConfiguration
    def comet_logger(self) -> Any:
        """Experiment of Comet; None without `logger.comet_project`, and on all ranks but the last."""
        return open_comet(self.cfg.logger, config=self.cfg.to_dict()) if self._logs else None

    @property
    def _logs(self) -> bool:
        return read_world(os.environ).is_logging_rank

    def close(self) -> None:
        """Close TensorBoard's writer and leave the signal handler, if they were made."""
        writer, handler = vars(self).get("tensorboard_logger"), vars(self).get("signal_handler")
        if writer is not None:
            writer.close()
        if handler is not None:
            handler.release()

    def reset_for_restart(self) -> None:
        """Close and forget what was made for this attempt: counters, timers, loggers and signal handler."""
        self.close()
        made = vars(self)
        for name, member in vars(GlobalState).items():
            if isinstance(member, cached_property) and name != "tokenizer":
                made.pop(name, None)
        self.train_state = TrainState()
