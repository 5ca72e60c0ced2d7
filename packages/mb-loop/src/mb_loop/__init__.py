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
    from mb_loop.bridge_api import checkpoint_and_decide_exit as checkpoint_and_decide_exit
    from mb_loop.bridge_api import evaluate_and_print_results as evaluate_and_print_results
    from mb_loop.bridge_api import post_training_step_callbacks as post_training_step_callbacks
    from mb_loop.bridge_api import save_checkpoint_and_time as save_checkpoint_and_time
    from mb_loop.bridge_api import train_step as train_step
    from mb_loop.callbacks import Callback as Callback
    from mb_loop.callbacks import CallbackContext as CallbackContext
    from mb_loop.callbacks import CallbackManager as CallbackManager
    from mb_loop.callbacks import UnknownEventError as UnknownEventError
    from mb_loop.callbacks import normalize_callbacks as normalize_callbacks
    from mb_loop.data_iterator import repeat as repeat
    from mb_loop.errors import DataExhaustedError as DataExhaustedError
    from mb_loop.errors import DataIteratorError as DataIteratorError
    from mb_loop.errors import ForwardStepError as ForwardStepError
    from mb_loop.errors import LoopError as LoopError
    from mb_loop.errors import LossShapeError as LossShapeError
    from mb_loop.errors import NonFiniteLossError as NonFiniteLossError
    from mb_loop.errors import ParallelSetupError as ParallelSetupError
    from mb_loop.errors import ReplicaMismatchError as ReplicaMismatchError
    from mb_loop.errors import TrainSettingsError as TrainSettingsError
    from mb_loop.evaluation.evaluate import evaluate as evaluate
    from mb_loop.evaluation.evaluate import evaluate_after_training as evaluate_after_training
    from mb_loop.evaluation.non_loss import NonLossData as NonLossData
    from mb_loop.evaluation.validation import ValidationSet as ValidationSet
    from mb_loop.evaluation.validation import ValidationSetError as ValidationSetError
    from mb_loop.evaluation.validation import validation_line as validation_line
    from mb_loop.exits.early_stopping import EarlyStopping as EarlyStopping
    from mb_loop.exits.early_stopping import EarlyStoppingStateError as EarlyStoppingStateError
    from mb_loop.exits.outcome import TrainOutcome as TrainOutcome
    from mb_loop.exits.stop_signal import DistributedSignalHandler as DistributedSignalHandler
    from mb_loop.graphs.capture import CudaGraphs as CudaGraphs
    from mb_loop.loop_state import LoopState as LoopState
    from mb_loop.maintenance.checkpoint_saver import Checkpointer as Checkpointer
    from mb_loop.parts import TrainParts as TrainParts
    from mb_loop.progress.loss_printer import LossPrinter as LossPrinter
    from mb_loop.progress.progress_log import ProgressLogError as ProgressLogError
    from mb_loop.progress.progress_log import append_to_progress_log as append_to_progress_log
    from mb_loop.progress.progress_log import (
        compute_throughputs_and_append_to_progress_log as compute_throughputs_and_append_to_progress_log,
    )
    from mb_loop.progress.progress_log import (
        get_start_time_from_progress_log as get_start_time_from_progress_log,
    )
    from mb_loop.progress.progress_recorder import ProgressRecorder as ProgressRecorder
    from mb_loop.progress.progress_recorder import progress_recorders as progress_recorders
    from mb_loop.rerun_machine import RerunMachine as RerunMachine
    from mb_loop.rules import RULES as RULES
    from mb_loop.settings import GlobalState as GlobalState
    from mb_loop.state import TrainState as TrainState
    from mb_loop.state import TrainStateError as TrainStateError
    from mb_loop.step.attention_logits import AttentionLogits as AttentionLogits
    from mb_loop.step.attention_logits import build_attention_logits as build_attention_logits
    from mb_loop.step.forward_step import maybe_inject_state as maybe_inject_state
    from mb_loop.step.forward_step import needs_global_state_injection as needs_global_state_injection
    from mb_loop.step.forward_step import prepare_forward_step_func as prepare_forward_step_func
    from mb_loop.step.hooks import disable_forward_pre_hook as disable_forward_pre_hook
    from mb_loop.step.hooks import enable_forward_pre_hook as enable_forward_pre_hook
    from mb_loop.step.hooks import should_disable_forward_pre_hook as should_disable_forward_pre_hook
    from mb_loop.step.loss_checks import require_finite_loss as require_finite_loss
    from mb_loop.step.losses import reduce_losses as reduce_losses
    from mb_loop.step.microbatches import BatchPlan as BatchPlan
    from mb_loop.step.microbatches import BatchSizeError as BatchSizeError
    from mb_loop.step.microbatches import StepBatch as StepBatch
    from mb_loop.step.microbatches import step_batch as step_batch
    from mb_loop.step.result import StepResult as StepResult
    from mb_loop.step.schedule import forward_backward_no_pipelining as forward_backward_no_pipelining
    from mb_loop.step.step import TrainStep as TrainStep
    from mb_loop.training import train as train
    from mb_schema.save_result import SaveResult as SaveResult

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
