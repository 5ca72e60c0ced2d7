"""Ranks that end in every way, and launchers that are killed: real processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from mb_launch.ranks.left_ranks import LeftRanks, at_work

torch = pytest.importorskip("torch")
psutil = pytest.importorskip("psutil")

LAUNCHER = """
import atexit, glob, os, signal, sys, time, traceback
from mb_launch import report_failure
from mb_launch.ranks.left_ranks import at_work

HOW, FOLDER = sys.argv[1:3]

def work():
    rank = os.environ["RANK"]
    open(f"{FOLDER}/{rank}", "w").write(str(os.getpid()))
    if HOW == "sleep":
        time.sleep(120)
    if HOW == "early" and rank == "1":
        os._exit(0)
    with at_work(os.environ):
        time.sleep(0.5)
        if HOW == "at exit" or HOW == "at exit of one" and rank == "1":
            atexit.register(os._exit, 0)
        if HOW == "partner leaves slowly" and rank == "1":
            atexit.register(time.sleep, 60)
        if HOW.startswith("at exit") or HOW.startswith("partner") and rank == "1":
            return
        while HOW.startswith("partner") and not glob.glob(os.environ["MB_ERROR_FOLDER"] + "/[fr][ie][ns]*-1"):
            time.sleep(0.05)
        with at_work(os.environ):
            pass  # a program that marks its work within a rank that is forked
        if rank == "1" or HOW.endswith("(0) # all"):
            exec(HOW)
        notices = HOW.endswith("(7)") or HOW.startswith("partner")
        time.sleep(0.3 if notices else 60)  # a collective may notice at once, or never
        raise RuntimeError("Connection reset by peer")

def main():
    try:
        work()
    except Exception:
        sys.exit(report_failure(traceback.format_exc(), exit_code=1, environment=os.environ))

if "RANK" in os.environ:
    main()
else:
    from mb_launch import ForkedProgram, launch_local  # with torch, which the ranks do not need

    program = ForkedProgram(argv=tuple(sys.argv), main=main, preload=int)
    fork = program if sys.argv[3] == "forked" else None
    ended = launch_local(sys.argv, processes=2, fork=fork)
    print(ended.exit_code, ended.failure and ended.failure.text)
"""

KINDS = ["forked", "interpreters"]


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(how, kind, *before):
        program = tmp_path / "program.py"
        program.write_text(LAUNCHER)
        command = [*before, sys.executable, program, how, tmp_path, kind]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def ranks_of(folder):
    """Return the processes of both ranks once they run."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [file.read_text() for file in (folder / "0", folder / "1") if file.exists()]
        if len(found) == 2 and all(found):
            return [psutil.Process(int(process)) for process in found]
        time.sleep(0.05)
    raise TimeoutError("the ranks did not start")


CAUSES = {
    "os._exit(7)": "1 rank 1 ended with exit code 7",
    "os._exit(0)": "1 rank 1 ended with exit code 0 in the middle of its work, without an error",
    "os.kill(os.getpid(), signal.SIGKILL)": "1 rank 1 was killed by SIGKILL",
    "raise OSError('the cause')": "1 rank 1: Traceback",
}
ELSEWHERE = {("os._exit(7)", "forked"), ("raise OSError('the cause')", "interpreters")}
"""Tested with local ranks, too: run in the matrix only."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "cause", "kind"),
    [
        pytest.param(how, cause, kind, marks=[pytest.mark.matrix] * ((how, kind) in ELSEWHERE))
        for how, cause in CAUSES.items()
        for kind in KINDS
    ],
)
def test_the_rank_that_ended_first_is_named(launch, how, cause, kind):
    printed, _ = launch(how, kind).communicate(timeout=240)
    assert printed.startswith(cause)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_all_end_with_0_at_work_have_failed(launch, kind):
    printed, _ = launch("os._exit(0) # all", kind).communicate(timeout=240)
    assert " ended with exit code 0 in the middle of its work" in printed
    assert printed.startswith("1 rank ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "when"), [("forked", "in the middle of its work"), ("interpreters", "before its work began")]
)
def test_a_rank_that_ends_with_0_before_its_work_ends_the_others(launch, kind, when):
    """A forked rank is at work from its first line on."""
    printed, _ = launch("early", kind).communicate(timeout=240)
    assert printed.startswith(f"1 rank 1 ended with exit code 0 {when}, without an error")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["at exit", "at exit of one"])
def test_forked_ranks_that_end_with_0_after_their_work_have_not_failed(launch, how):
    """As with a library whose exit function calls os._exit.

    Torch elastic waits for their results for ever, and a rank that has sent its own one waits for elastic.
    """
    printed, _ = launch(how, "forked").communicate(timeout=240)
    assert printed == "0 None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind"),
    [*(("partner finished", kind) for kind in KINDS), ("partner leaves slowly", "interpreters")],
)
def test_a_failure_names_the_ranks_that_had_finished(launch, how, kind):
    """A partner that returned too early is the cause of a failure of the rank that waits for it.

    The launcher ends one that has not left its interpreter yet.
    """
    printed, _ = launch(how, kind).communicate(timeout=240)
    assert "Connection reset by peer" in printed
    assert printed.endswith("\nrank 1 had finished before, without an error\n")


def test_a_rank_that_finished_after_the_failure_did_not_finish_before(tmp_path):
    (tmp_path / "finished-1").write_text("5")
    moment = (tmp_path / "finished-1").stat().st_ctime
    assert LeftRanks(tmp_path).finished_before(moment + 1) == [1]
    assert LeftRanks(tmp_path).finished_before(moment - 1) == []


def test_a_fork_of_a_rank_that_leaves_the_block_does_not_finish_the_work(tmp_path):
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MB_ERROR_FOLDER": str(tmp_path)}
    block = at_work(rank)
    block.__enter__()
    fork = multiprocessing.get_context("fork").Process(target=block.__exit__, args=(None, None, None))
    fork.start()
    fork.join()
    assert [path.name for path in tmp_path.iterdir()] == ["at-work-1"]
    block.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["finished-1"]


@pytest.fixture
def start_child():
    children = []

    def start(code):
        children.append(subprocess.Popen([sys.executable, "-c", f"import os, time; {code}"]))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_rank_that_was_reaped_before_it_was_seen_is_the_first_cause(start_child, tmp_path):
    """Torch elastic reaps a rank that ended with 0, and keeps no exit code of it."""
    left, partner = start_child("os._exit(0)"), start_child("time.sleep(60)")
    left.wait()
    for rank, process in enumerate((left, partner)):
        (tmp_path / f"at-work-{rank}").write_text(str(process.pid))
    with LeftRanks(tmp_path) as watched:
        time.sleep(0.3)
    partner.kill()
    partner.wait()
    assert watched.failure({1: 1}).text.startswith("rank 0 ended with exit code 0 in the middle of its work")


@pytest.mark.parametrize("partner_reaped", [False, True])
def test_a_rank_that_the_launcher_ended_after_another_failed_is_no_cause(
    start_child, tmp_path, partner_reaped
):
    failed, terminated = start_child("os._exit(1)"), start_child("time.sleep(60)")
    (tmp_path / "at-work-1").write_text(
        str(terminated.pid)
    )  # the failed one has recorded its error, and left
    os.waitid(os.P_PID, failed.pid, os.WEXITED | os.WNOWAIT)
    if partner_reaped:
        failed.wait()
    terminated.terminate()
    terminated.wait()
    with LeftRanks(tmp_path) as watched:
        time.sleep(0.3)
    assert watched.failure({0: 1}) is None


@pytest.mark.parametrize(("codes", "code"), [({0: 7}, 7), ({}, 0)])
def test_the_exit_code_that_a_launcher_has_kept_is_named(start_child, tmp_path, codes, code):
    left = start_child(f"os._exit({code})")
    left.wait()
    (tmp_path / "at-work-0").write_text(str(left.pid))
    assert f"rank 0 ended with exit code {code} " in LeftRanks(tmp_path).failure(codes).text


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_end_with_a_launcher_that_is_killed(launch, tmp_path, kind):
    launcher = launch("sleep", kind)
    ranks = ranks_of(tmp_path)
    launcher.kill()
    _, alive = psutil.wait_procs(ranks, timeout=20)
    for rank in alive:
        rank.kill()
    assert alive == []


@pytest.mark.slow
def test_the_end_of_the_terminal_is_forwarded_and_nohup_is_respected(launch, tmp_path):
    protected = launch("sleep", "forked", "nohup")
    ranks = ranks_of(tmp_path)
    protected.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert [process.is_running() for process in (*ranks, psutil.Process(protected.pid))] == [True] * 3
    protected.send_signal(signal.SIGTERM)
    protected.wait(timeout=30)
    for file in (tmp_path / "0", tmp_path / "1"):
        file.unlink()
    usual = launch("sleep", "forked")
    ranks_of(tmp_path)
    usual.send_signal(signal.SIGHUP)
    printed, _ = usual.communicate(timeout=240)
    assert printed.startswith("1 rank 0 was ended by SIGHUP, which its launcher forwarded")
