from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from mb_loop import disable_forward_pre_hook, enable_forward_pre_hook, should_disable_forward_pre_hook
from mb_loop.step.hooks import ForwardPreHooks


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
