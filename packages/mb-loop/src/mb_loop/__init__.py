"""Training loop: step, evaluation, microbatches, exit conditions, callbacks.

The number of microbatches of a step is a function of the samples consumed before it:

>>> from mb_loop import BatchPlan, TrainState
>>> plan = BatchPlan.of(8, micro_batch_size=1, data_parallel_size=2, rampup_batch_size=[4, 2, 24])
>>> state, counts = TrainState(), []
>>> while state.step < 7:
...     batch = plan.at(state.consumed_train_samples)
...     counts.append(batch.num_microbatches)
...     state.consumed_train_samples += batch.samples
...     state.step += 1
>>> counts
[2, 2, 2, 3, 3, 4, 4]
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_loop.attention_logits import AttentionLogits as AttentionLogits
    from mb_loop.attention_logits import build_attention_logits as build_attention_logits
    from mb_loop.bridge_api import checkpoint_and_decide_exit as checkpoint_and_decide_exit
    from mb_loop.bridge_api import post_training_step_callbacks as post_training_step_callbacks
    from mb_loop.bridge_api import save_checkpoint_and_time as save_checkpoint_and_time
    from mb_loop.callbacks import Callback as Callback
    from mb_loop.callbacks import CallbackContext as CallbackContext
    from mb_loop.callbacks import CallbackManager as CallbackManager
    from mb_loop.callbacks import UnknownEventError as UnknownEventError
    from mb_loop.callbacks import normalize_callbacks as normalize_callbacks
    from mb_loop.checkpoint_saver import Checkpointer as Checkpointer
    from mb_loop.checkpoint_saver import SaveResult as SaveResult
    from mb_loop.deferred_loss_check import DeferredLossCheck as DeferredLossCheck
    from mb_loop.errors import DataExhaustedError as DataExhaustedError
    from mb_loop.errors import DataIteratorError as DataIteratorError
    from mb_loop.errors import ForwardStepError as ForwardStepError
    from mb_loop.errors import LoopError as LoopError
    from mb_loop.errors import LossShapeError as LossShapeError
    from mb_loop.errors import ParallelSetupError as ParallelSetupError
    from mb_loop.errors import ReplicaMismatchError as ReplicaMismatchError
    from mb_loop.errors import TrainSettingsError as TrainSettingsError
    from mb_loop.evaluation import evaluate as evaluate
    from mb_loop.evaluation import evaluate_after_training as evaluate_after_training
    from mb_loop.evaluation import evaluate_and_print_results as evaluate_and_print_results
    from mb_loop.graphs import CudaGraphs as CudaGraphs
    from mb_loop.hooks import disable_forward_pre_hook as disable_forward_pre_hook
    from mb_loop.hooks import enable_forward_pre_hook as enable_forward_pre_hook
    from mb_loop.hooks import should_disable_forward_pre_hook as should_disable_forward_pre_hook
    from mb_loop.injection import maybe_inject_state as maybe_inject_state
    from mb_loop.injection import needs_global_state_injection as needs_global_state_injection
    from mb_loop.injection import prepare_forward_step_func as prepare_forward_step_func
    from mb_loop.loop_state import LoopState as LoopState
    from mb_loop.loss_checks import NonFiniteLossError as NonFiniteLossError
    from mb_loop.loss_checks import require_finite_loss as require_finite_loss
    from mb_loop.loss_printer import LossPrinter as LossPrinter
    from mb_loop.losses import reduce_losses as reduce_losses
    from mb_loop.microbatches import BatchPlan as BatchPlan
    from mb_loop.microbatches import BatchSizeError as BatchSizeError
    from mb_loop.microbatches import StepBatch as StepBatch
    from mb_loop.microbatches import step_batch as step_batch
    from mb_loop.non_loss import NonLossData as NonLossData
    from mb_loop.outcome import TrainOutcome as TrainOutcome
    from mb_loop.progress_log import ProgressLogError as ProgressLogError
    from mb_loop.progress_log import append_to_progress_log as append_to_progress_log
    from mb_loop.progress_log import (
        compute_throughputs_and_append_to_progress_log as compute_throughputs_and_append_to_progress_log,
    )
    from mb_loop.progress_log import get_start_time_from_progress_log as get_start_time_from_progress_log
    from mb_loop.progress_recorder import ProgressRecorder as ProgressRecorder
    from mb_loop.progress_recorder import progress_recorders as progress_recorders
    from mb_loop.repeated_data import repeat as repeat
    from mb_loop.rerun_machine import RerunMachine as RerunMachine
    from mb_loop.result import StepResult as StepResult
    from mb_loop.rules import RULES as RULES
    from mb_loop.schedule import forward_backward_no_pipelining as forward_backward_no_pipelining
    from mb_loop.settings import GlobalState as GlobalState
    from mb_loop.state import TrainState as TrainState
    from mb_loop.state import TrainStateError as TrainStateError
    from mb_loop.step import TrainStep as TrainStep
    from mb_loop.step import train_step as train_step
    from mb_loop.stop_signal import DistributedSignalHandler as DistributedSignalHandler
    from mb_loop.training import train as train
    from mb_loop.validation import ValidationSet as ValidationSet
    from mb_loop.validation import ValidationSetError as ValidationSetError
    from mb_loop.validation import validation_line as validation_line

_HOMES = {
    "AttentionLogits": "attention_logits",
    "BatchPlan": "microbatches",
    "BatchSizeError": "microbatches",
    "Callback": "callbacks",
    "CallbackContext": "callbacks",
    "CallbackManager": "callbacks",
    "Checkpointer": "checkpoint_saver",
    "CudaGraphs": "graphs",
    "DataExhaustedError": "errors",
    "DataIteratorError": "errors",
    "DeferredLossCheck": "deferred_loss_check",
    "ForwardStepError": "errors",
    "repeat": "repeated_data",
    "DistributedSignalHandler": "stop_signal",
    "GlobalState": "settings",
    "LoopError": "errors",
    "LoopState": "loop_state",
    "LossPrinter": "loss_printer",
    "LossShapeError": "errors",
    "NonFiniteLossError": "loss_checks",
    "NonLossData": "non_loss",
    "ParallelSetupError": "errors",
    "ProgressLogError": "progress_log",
    "ProgressRecorder": "progress_recorder",
    "RULES": "rules",
    "ReplicaMismatchError": "errors",
    "RerunMachine": "rerun_machine",
    "SaveResult": "checkpoint_saver",
    "StepBatch": "microbatches",
    "StepResult": "result",
    "TrainOutcome": "outcome",
    "TrainSettingsError": "errors",
    "TrainState": "state",
    "TrainStateError": "state",
    "TrainStep": "step",
    "UnknownEventError": "callbacks",
    "ValidationSet": "validation",
    "ValidationSetError": "validation",
    "append_to_progress_log": "progress_log",
    "build_attention_logits": "attention_logits",
    "checkpoint_and_decide_exit": "bridge_api",
    "compute_throughputs_and_append_to_progress_log": "progress_log",
    "disable_forward_pre_hook": "hooks",
    "enable_forward_pre_hook": "hooks",
    "evaluate": "evaluation",
    "evaluate_after_training": "evaluation",
    "evaluate_and_print_results": "evaluation",
    "forward_backward_no_pipelining": "schedule",
    "get_start_time_from_progress_log": "progress_log",
    "maybe_inject_state": "injection",
    "needs_global_state_injection": "injection",
    "normalize_callbacks": "callbacks",
    "post_training_step_callbacks": "bridge_api",
    "prepare_forward_step_func": "injection",
    "progress_recorders": "progress_recorder",
    "reduce_losses": "losses",
    "require_finite_loss": "loss_checks",
    "save_checkpoint_and_time": "bridge_api",
    "should_disable_forward_pre_hook": "hooks",
    "step_batch": "microbatches",
    "train": "training",
    "train_step": "step",
    "validation_line": "validation",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
