"""A custom checkpoint manager with exactly the members of the documented protocol."""

import sys
from types import ModuleType

import torch
from runs import events, train_here

STORE = {}


class MemoryManager:
    """Keeps the weights and counters of the newest save in memory; every argument is required as documented."""

    def __init__(self, checkpoint_config):
        self.finalized = 0

    def save(self, ctx, callback_manager):
        counters = dict(ctx.state.train_state.state_dict())
        weights = {name: value.clone() for name, value in ctx.model[0].named_parameters()}
        STORE.update(counters=counters, weights=weights)

    def load(self, ctx):
        if not STORE:
            return 0, 0
        ctx.state.train_state.load_state_dict(STORE["counters"])
        with torch.no_grad():
            for name, value in ctx.model[0].named_parameters():
                value.copy_(STORE["weights"][name])
        return int(STORE["counters"]["step"]), 0

    def finalize_async_saves(self, state, blocking=False, terminate=False):
        self.finalized += 1


def test_a_run_saves_and_resumes_through_a_manager_of_the_documented_protocol(
    overrides, tmp_path, monkeypatch
):
    module = ModuleType("memory_managers")
    module.MemoryManager = MemoryManager
    monkeypatch.setitem(sys.modules, "memory_managers", module)
    STORE.clear()
    words = [
        *overrides,
        "checkpoint.custom_manager_class=memory_managers.MemoryManager",
        "checkpoint.save_interval=2",
        "checkpoint.non_persistent_save_interval=null",
    ]
    first = train_here([*words, "train.exit_interval=2"], tmp_path)
    assert (first.step, STORE["counters"]["step"]) == (2, 2)
    second = train_here([*words, "train.exit_interval=4"], tmp_path)
    assert (second.step, STORE["counters"]["step"]) == (4, 4)
    assert [event for event in events(tmp_path) if event[0] in ("start", "resume")] == [
        ("start", 0),
        ("resume", 2),
    ]
