"""What the trainer imports from mb_loop beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_loop.collectives import max_across_ranks as max_across_ranks
    from mb_loop.exits.early_stopping import early_stopping as early_stopping
    from mb_loop.exits.outcome import SPARE as SPARE
    from mb_loop.graphs.megatron import build_layer_graphs as build_layer_graphs
    from mb_loop.graphs.megatron import capture_full_iteration as capture_full_iteration
    from mb_loop.graphs.megatron import captured_schedule as captured_schedule
    from mb_loop.graphs.megatron import graph_resources as graph_resources
    from mb_loop.graphs.megatron import wrapping_stream as wrapping_stream
    from mb_loop.maintenance.periodic import wait_for_device as wait_for_device
    from mb_loop.mcore import LossInspection as LossInspection
    from mb_loop.mcore import MegatronRerunMachine as MegatronRerunMachine
    from mb_loop.mcore import build_rerun_machine as build_rerun_machine
    from mb_loop.mcore import inspect_loss as inspect_loss
    from mb_loop.mcore import loss_inspection as loss_inspection
    from mb_loop.settings import evaluation_batch as evaluation_batch
    from mb_loop.step.forward_step import inspected_forward_step as inspected_forward_step

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
