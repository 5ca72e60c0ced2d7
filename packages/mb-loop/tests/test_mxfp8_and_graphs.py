from types import SimpleNamespace

import pytest

from mb_loop.graphs.capture_schedule import GraphCapture
from mb_loop.loop_state import DdpSection, LoopConfig, OptimizerSection, TrainSection
from mb_loop.step.hooks import ForwardPreHooks
from mb_loop.step.mxfp8 import parameter_copy


class Sharded:
    """Optimizer with the method of Megatron's DistributedOptimizer."""

    copies = 0

    def _copy_main_params_to_param_buffer(self):
        self.copies += 1


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("hooks_on", [True, False])
def test_parameters_are_copied_exactly_when_both_settings_and_the_hooks_are_on(reuse, overlap, hooks_on):
    cfg = LoopConfig(
        train=TrainSection(),
        ddp=DdpSection(overlap_param_gather=overlap),
        optimizer=OptimizerSection(reuse_grad_buf_for_mxfp8_param_ag=reuse),
    )
    members = [Sharded(), object(), Sharded()]
    chain = SimpleNamespace(chained_optimizers=members)
    hooks = SimpleNamespace(on=hooks_on)
    copies = [parameter_copy(cfg, optimizer, hooks=hooks) for optimizer in (chain, members[0])]
    assert all((copy is not None) == (reuse and overlap) for copy in copies)
    for copy in copies:
        if copy is not None:
            copy()
    wanted = int(reuse and overlap and hooks_on)
    assert (members[0].copies, members[2].copies) == (2 * wanted, wanted)


class Chunk:
    """Hooks that can be toggled."""

    def __init__(self, on):
        self.remove_forward_pre_hook_handles = {"module": 1} if on else {}

    def enable_forward_pre_hook(self):
        self.remove_forward_pre_hook_handles["module"] = 1

    def disable_forward_pre_hook(self, param_sync=True):
        self.remove_forward_pre_hook_handles.clear()


class Graphs:
    def __init__(self, warmup_steps, chunk):
        self.warmup_steps, self.chunk, self.log = warmup_steps, chunk, []

    def capture(self):
        self.log.append("capture, hooks " + ("on" if self.chunk.remove_forward_pre_hook_handles else "off"))

    def set_manual_hooks(self):
        self.log.append("manual hooks")

    def delete(self):
        self.log.append("delete")


def test_graphs_are_captured_once_after_the_warm_up_with_hooks_off():
    chunk = Chunk(on=True)
    graphs = Graphs(2, chunk)
    capture = GraphCapture(graphs, hooks=ForwardPreHooks([chunk], used=True), start_step=10)
    for step in (10, 11, 12, 13):
        capture.before_step(step)
    assert graphs.log == ["capture, hooks off", "manual hooks"]
    capture.end()
    assert graphs.log[-1] == "delete"


def test_a_skipped_step_does_not_prevent_the_capture():
    graphs = Graphs(2, Chunk(on=False))
    capture = GraphCapture(graphs, hooks=ForwardPreHooks([], used=False), start_step=0)
    for step in (0, 1, 3, 4):  # step 3 is in iterations_to_skip
        capture.before_step(step)
    assert graphs.log == ["capture, hooks off"]


def test_a_capture_without_warm_up_gets_its_hooks_when_they_are_enabled():
    chunk = Chunk(on=False)
    graphs = Graphs(0, chunk)
    capture = GraphCapture(graphs, hooks=ForwardPreHooks([chunk], used=True), start_step=0)
    capture.before_step(0)
    chunk.enable_forward_pre_hook()
    capture.before_step(1)
    capture.before_step(2)
    assert graphs.log == ["capture, hooks off", "manual hooks"]
