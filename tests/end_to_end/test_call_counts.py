"""Functions that one ordinary step, one save and the construction of the model cross, over all packages.

A reader who follows a step with a debugger enters each of them, so their number is a measure of readability. It may
only fall: lower a limit together with its number. Functions of mb-host, which replaces the functions of a GPU, are not
counted.
"""

import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs import train_here

from mb_checkpoint import RunCheckpointer
from mb_loop import Callback
from mb_trainer import build

LIMITS = {"step": 45, "save": 108, "model": 150}
ROOTS = tuple(
    f"{name}/"
    for name in (
        *("mb_checkpoint", "mb_config", "mb_data", "mb_launch", "mb_loop", "mb_metrics", "mb_models"),
        *("mb_overlap", "mb_resilience", "mb_trainer"),
    )
)


class CallTrace:
    """Functions of the packages that were called, by part of the run."""

    def __init__(self):
        self.part = None
        self.functions = defaultdict(dict)

    def __call__(self, frame, event, _argument):
        code = frame.f_code
        if event == "call" and self.part is not None and not code.co_name.startswith("<"):
            path = Path(code.co_filename)
            module = "/".join(path.parts[-2:]) if len(path.parts) > 1 else ""
            package = next((part for part in path.parts if f"{part}/" in ROOTS), None)
            if package is not None:
                self.functions[self.part].setdefault(f"{package}: {module}: {code.co_qualname}")

    @contextmanager
    def during(self, part):
        """Record the calls of the block under a name."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def wrap(self, function, part):
        """Return the function with its calls recorded."""

        def traced(*arguments, **keywords):
            with self.during(part):
                return function(*arguments, **keywords)

        return traced


class OneStep(Callback):
    """Record from the end of the second step to the end of the third."""

    def __init__(self, trace):
        self.trace = trace

    def on_train_step_end(self, context):
        self.trace.part = "step" if context.state.train_state.step == 2 else None


@pytest.fixture(scope="module")
def trace(overrides, tmp_path_factory):
    """Calls of a run of four steps, with a save after the fourth and the log interval at the fifth."""
    words = ["train.train_iters=4", "checkpoint.save_interval=4", "logger.log_interval=5"]
    found = CallTrace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "wrapped_model", found.wrap(build.wrapped_model, "model"))
        patch.setattr(RunCheckpointer, "save", found.wrap(RunCheckpointer.save, "save"))
        sys.setprofile(found)
        try:
            train_here([*overrides, *words], tmp_path_factory.mktemp("traced"), callbacks=(OneStep(found),))
        finally:
            sys.setprofile(None)
    return found


@pytest.mark.parametrize("part", LIMITS)
def test_no_more_functions_than_before(trace, part):
    found = list(trace.functions[part])
    assert len(found) > LIMITS[part] // 2  # the trace works
    assert len(found) <= LIMITS[part], "\n".join(found)
