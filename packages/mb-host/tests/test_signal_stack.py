"""Signals that arrive in matrix products of oneDNN."""

import subprocess
import sys

import pytest
import torch

PRODUCTS = """
import os, signal, sys, time
import torch
import mb_host
from mb_host.cpu.matrix_products import matrix_product

mb_host.install(force=True)
torch.set_num_threads(1)
left, right = torch.randn(1024, 256), torch.randn(256, 640)
expected, received = matrix_product(left, right), []
child = os.fork() if sys.argv[1] == "forked" else None
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 60
while len(received) < 500 and time.monotonic() < end:
    assert torch.equal(matrix_product(left, right), expected)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(received) >= 500
os._exit(0)
"""

IN_A_THREAD = """
import threading
from mb_host.cpu.signal_stack import use_signal_stack
found = []
thread = threading.Thread(target=lambda: found.append(use_signal_stack()))
thread.start()
thread.join()
found += [use_signal_stack(), use_signal_stack()]
thread = threading.Thread(target=lambda: found.append(use_signal_stack()))
thread.start()
thread.join()
print(found)
"""


@pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of torch has no oneDNN"
)
@pytest.mark.parametrize("process", ["own", "forked"])
def test_signals_change_no_product_and_no_memory(process):
    ended = subprocess.run(
        [sys.executable, "-c", PRODUCTS, process], stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


def test_only_the_main_thread_sets_its_stack():
    ended = subprocess.run([sys.executable, "-c", IN_A_THREAD], stdout=subprocess.PIPE, text=True)
    assert ended.stdout.strip() == "[False, True, True, True]"
