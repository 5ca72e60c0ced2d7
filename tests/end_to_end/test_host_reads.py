"""No step waits for the device: the numbers that the host reads from tensors in whole steps, by the file that reads."""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
from runs import train_here

READERS = ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__")
"""Methods that return when the device has computed the value."""
MAKERS = ("tensor", "as_tensor")
"""Functions of torch that wait for the device if they are given one: they copy from pageable memory."""
ONLY_WITHOUT_A_GPU = (
    "cpu/tensors.py",
    "optim/optimizer.py",  # torch's AdamW in place of a fused one
    "core/utils.py",  # Megatron's norm in place of a fused one
    "optimizer/clip_grads.py",  # reads the norm, because there is no kernel that scales by a tensor
)
"""Ends of the paths of files that read because kernels are missing."""
SMALL = (
    *("train.train_iters=8", "train.micro_batch_size=2", "validation.eval_interval=null"),
    *("checkpoint.save_interval=null", "model.num_layers=1", "optimizer.clip_grad=1.0"),
)
FIRST, LAST = 3, 7
"""Steps between whose ends reads are recorded."""
MASKS = {"training/batches.py": 4 * (LAST - FIRST)}
"""The loss mask of each of four microbatches, which is checked on the host before it is copied to the device."""


class RecordReads:
    """Callback that records the file of each call of a reader between the ends of two steps."""

    def __init__(self):
        self.files = Counter()
        self._patches = ExitStack()

    def on_train_step_end(self, context):
        step = context.state.train_state.step
        if step == LAST:
            self._patches.close()
        if step == FIRST:
            for name in READERS:
                self._patches.enter_context(mock.patch.object(torch.Tensor, name, self._recorded(name)))
            for name in MAKERS:
                self._patches.enter_context(mock.patch.object(torch, name, self._recorded_with_device(name)))

    def _recorded_with_device(self, name):
        make = getattr(torch, name)

        def recorded(*arguments, **options):
            if options.get("device") is not None:
                self._count(sys._getframe(1))
            return make(*arguments, **options)

        return recorded

    def _count(self, frame):
        self.files["/".join(Path(frame.f_code.co_filename).parts[-2:])] += 1

    def _recorded(self, name):
        read = getattr(torch.Tensor, name)

        def recorded(tensor, *arguments, **options):
            self._count(sys._getframe(1))
            return read(tensor, *arguments, **options)

        return recorded


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {**MASKS, "step/loss_checks.py": LAST - FIRST}),  # a copy on the host, of the step before
        (["rerun_state_machine.check_for_nan_in_loss=false", "logger.log_interval=100"], MASKS),
    ],
    ids=["check of the loss", "no check"],
)
def test_a_step_reads_no_number_from_the_device(settings, expected, overrides, tmp_path):
    reads = RecordReads()
    train_here(
        [*overrides, *SMALL, "logger.log_interval=100", *settings], tmp_path / "run", callbacks=(reads,)
    )
    found = {file: count for file, count in reads.files.items() if not file.endswith(ONLY_WITHOUT_A_GPU)}
    assert found == expected


def test_a_step_with_a_log_line_and_the_report_of_memory_reads_only_copies_on_the_host(overrides, tmp_path):
    reads = RecordReads()
    train_here([*overrides, *SMALL, "logger.log_interval=3"], tmp_path / "run", callbacks=(reads,))
    found = {file: count for file, count in reads.files.items() if not file.endswith(ONLY_WITHOUT_A_GPU)}
    copies = {**MASKS, "step/loss_checks.py": LAST - FIRST, "recorder/tensors.py": 1}
    assert found == copies


def test_a_check_of_each_microbatch_reads_each_loss(overrides, tmp_path):
    reads = RecordReads()
    words = ["rerun_state_machine.check_loss_immediately=true", "logger.log_interval=100"]
    train_here([*overrides, *SMALL, *words], tmp_path / "run", callbacks=(reads,))
    assert reads.files["step/loss_checks.py"] + reads.files["mb_loop/mcore.py"] >= LAST - FIRST
