from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from mb_loop import disable_forward_pre_hook, enable_forward_pre_hook, should_disable_forward_pre_hook
from mb_loop.errors import ParallelSetupError
from mb_loop.loop_state import DdpSection, LoopConfig, OptimizerSection, TrainSection
from mb_loop.step.hooks import ForwardPreHooks, parameter_copy


@dataclass
class Chunk:
    """Fake of Megatron's DistributedDataParallel: enabling or disabling twice is an error."""

    log: list[str] = field(default_factory=list)
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(param_sync_func="sync"))
    remove_forward_pre_hook_handles: dict = field(default_factory=lambda: {"module": "handle"})

    def enable_forward_pre_hook(self):
        assert not self.remove_forward_pre_hook_handles
        self.remove_forward_pre_hook_handles["module"] = "handle"
        self.log.append("on")

    def disable_forward_pre_hook(self, param_sync=True):
        del self.remove_forward_pre_hook_handles["module"]
        self.log.append("off, gathered" if param_sync else "off")


@pytest.mark.parametrize(
    ("fsdp", "distributed", "overlap", "expected"),
    [
        (False, True, True, True),
        (True, True, True, False),
        (False, False, True, False),
        (False, True, False, False),
    ],
)
def test_hooks_exist_only_with_an_overlapped_gather(fsdp, distributed, overlap, expected):
    assert should_disable_forward_pre_hook(fsdp, distributed, overlap) is expected


def test_hooks_are_disabled_for_the_first_successful_step_around_saves_and_at_the_end():
    chunk = Chunk()
    hooks = ForwardPreHooks([chunk], used=True)
    hooks.begin()
    assert chunk.config.param_sync_func is None
    hooks.after_step(skipped=True)
    with hooks.paused():
        assert not hooks.on
    assert chunk.log == ["off"]
    hooks.after_step(skipped=False)
    assert chunk.config.param_sync_func == "sync"
    hooks.after_step(skipped=False)
    with hooks.paused():
        assert not hooks.on
    hooks.end()
    assert chunk.log == ["off", "on", "off, gathered", "on", "off, gathered"]


def test_hooks_are_enabled_again_after_an_error_in_a_save():
    chunk = Chunk()
    with pytest.raises(OSError), ForwardPreHooks([chunk], used=True).paused():
        raise OSError
    assert chunk.log == ["off, gathered", "on"]


def test_a_run_without_a_successful_step_restores_the_sync_function():
    chunk = Chunk()
    hooks = ForwardPreHooks([chunk], used=True)
    hooks.begin()
    hooks.end()
    assert (chunk.config.param_sync_func, chunk.log) == ("sync", ["off"])


def test_the_same_model_can_be_trained_again():
    chunk = Chunk()
    for _ in range(2):
        hooks = ForwardPreHooks([chunk], used=True)
        hooks.begin()
        hooks.after_step(skipped=False)
        hooks.end()
    assert chunk.log == ["off", "on", "off, gathered", "on", "off, gathered"]


def test_chunks_that_share_a_config_keep_its_function():
    config = SimpleNamespace(param_sync_func="sync")
    hooks = ForwardPreHooks([Chunk(config=config), Chunk(config=config)], used=True)
    hooks.begin()
    hooks.after_step(skipped=False)
    assert config.param_sync_func == "sync"


def test_what_begins_a_run_is_restored_after_an_error():
    chunk = Chunk()
    hooks = ForwardPreHooks([chunk], used=True)
    hooks.begin()
    hooks.restore_param_sync()
    assert (chunk.config.param_sync_func, chunk.log) == ("sync", ["off"])


def test_models_without_hooks_are_unchanged():
    hooks = ForwardPreHooks([object()], used=False)
    hooks.begin()
    hooks.after_step(skipped=False)
    hooks.end()
    assert not hooks.on


def test_the_functions_toggle_every_chunk():
    chunks = [Chunk(), Chunk()]
    disable_forward_pre_hook(chunks, param_sync=False)
    enable_forward_pre_hook(chunks)
    assert [chunk.log for chunk in chunks] == [["off", "on"], ["off", "on"]]


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


class SharedBufferChunk(Chunk):
    """Chunk of Megatron whose MXFP8 parameters are gathered through the gradient buffer."""

    ddp_config = SimpleNamespace(reuse_grad_buf_for_mxfp8_param_ag=True)

    def __init__(self):
        super().__init__()
        self.buffer, self.parameter = "gradient", "parameter of the step before"

    def disable_forward_pre_hook(self, param_sync=True):
        super().disable_forward_pre_hook(param_sync)
        if param_sync:
            self.parameter = self.buffer

    def enable_forward_pre_hook(self):
        super().enable_forward_pre_hook()
        self.buffer = "gradient"


class SharedBufferOptimizer:
    """Optimizer of Megatron that updates copies of the parameters."""

    def __init__(self, chunk):
        self.chunk = chunk

    def prepare_model_params_for_param_sync(self):
        self.chunk.buffer = "updated parameter"


def test_a_gather_through_the_gradient_buffer_gathers_the_updated_parameters():
    chunk = SharedBufferChunk()
    hooks = ForwardPreHooks([chunk], used=True, optimizer=SharedBufferOptimizer(chunk))
    with hooks.paused():
        assert chunk.parameter == "updated parameter"
    chunk.parameter = "parameter of the step before"
    hooks.end()
    assert chunk.parameter == "updated parameter"


@pytest.mark.parametrize("optimizer", [None, object()])
def test_gradients_are_never_gathered_as_parameters(optimizer):
    hooks = ForwardPreHooks([SharedBufferChunk()], used=True, optimizer=optimizer)
    with pytest.raises(ParallelSetupError, match="gradients would be gathered as parameters"):
        hooks.end()


def test_hooks_are_disabled_in_the_order_of_megatron(monkeypatch):
    pytest.importorskip("mb_host")
    training = pytest.importorskip("megatron.training.training")
    monkeypatch.setattr(training, "_assert_param_gather_overlap_model", lambda chunk: None)
    logs = []
    for disable in (training.disable_forward_pre_hook, disable_forward_pre_hook):
        for options in ({}, {"param_sync": False}):
            log = []
            optimizer = SimpleNamespace(
                prepare_model_params_for_param_sync=lambda log=log: log.append("prepared")
            )
            disable([Chunk(log=log), Chunk(log=log)], optimizer=optimizer, **options)
            logs.append(log)
    assert logs[:2] == logs[2:]
    assert logs[0] == ["prepared", "off, gathered", "off, gathered"]
