"""Local ranks of a plain torch script: alone, through `launch_local`, and under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("psutil")

SCRIPT = Path(__file__).parents[1] / "examples" / "plain_torch.py"

FORWARDED = """
import os, signal, subprocess, sys
from mb_launch.ranks.local_ranks import forwarded_signals

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with forwarded_signals({signal.SIGUSR1}):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert child.wait(timeout=60) == -signal.SIGUSR1
"""
"""A separate process, because all of its children receive the signal."""

FORWARDED_AFTER_AN_END = """
import os, signal, subprocess, sys, psutil
from mb_launch.ranks.local_ranks import forwarded_signals

ended = subprocess.Popen([sys.executable, "-c", ""])
gone = psutil.Process(ended.pid)
ended.wait()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
psutil.Process.children = lambda self: [gone, psutil.Process(child.pid)]  # as if it ended after the list was made
with forwarded_signals({signal.SIGUSR1}):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert child.wait(timeout=60) == -signal.SIGUSR1
"""

FORKED = """
import os, sys
from mb_launch import ForkedProgram, launch_local

def main():
    assert sys.argv == ["program", "7"], sys.argv
    assert "string" in sys.modules
    sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "1" else 0)

def preload():
    import string

program = ForkedProgram(argv=("program", "7"), main=main, preload=preload)
result = launch_local(["-c", "raise SystemExit('not forked')"], processes=2, fork=program)
print(result.exit_code, result.failure.message)
print(sorted({"MB_ERROR_FOLDER", "MB_NUMA_BINDING"} & {*os.environ}))
"""


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", [FORWARDED, FORWARDED_AFTER_AN_END])
def test_signals_are_forwarded_to_the_children(program):
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ([sys.executable, SCRIPT], "mean rank of 1: 0.0\n"),
        ([sys.executable, SCRIPT, "--nproc", "2"], "mean rank of 2: 0.5\n"),
        (
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT],
            "mean rank of 2: 0.5\n",
        ),
    ],
    ids=["alone", "local ranks", "torchrun"],
)
def test_the_same_script_runs_under_each_launcher(command, line):
    ended = run(*command)
    assert (ended.returncode, ended.stdout) == (0, line), ended.stderr


@pytest.mark.slow
def test_the_first_cause_of_a_failure_is_printed_once():
    ended = run(sys.executable, SCRIPT, "--nproc", "2", "--fail", "0")
    assert ended.returncode == 1
    assert ended.stderr.count("error: rank 0: Traceback (most recent call last):\n") == 1
    assert ended.stderr.count("RuntimeError: no data for this rank") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or torch.cuda.is_available(), reason="forks on Linux without a GPU"
)
def test_ranks_are_forked_from_a_launcher_that_has_imported_their_modules():
    ended = run(sys.executable, "-c", FORKED)
    assert ended.stdout == "1 rank 1 ended with exit code 7\n[]\n", ended.stderr


LIMITED = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from mb_launch import launch_local
from mb_launch.errors import OpenFilesError
try:
    code = launch_local(["-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"], processes=2)
    print(code.exit_code)
except OpenFilesError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_limit_of_open_files_is_raised_and_one_that_is_too_low_is_one_message():
    assert run(sys.executable, "-c", LIMITED, "64", "64").stdout == (
        "ulimit -n: this process may open 64 files, and a rank opens more than that with its connections to the "
        "others. Raise the limit to 4096, or start one process.\n"
    )
    assert run(sys.executable, "-c", LIMITED, "64", "512").stdout.splitlines() == ["512", "512", "0"]
