"""Rank servers that do not reply."""

import gc
import os
import signal
import sys

import pytest

from mb_host.ranks.messages import RankFileDescriptors, RankSpec
from mb_host.ranks.server import CannotForkError, RankServer, ServerEndedError
from mb_host.ranks.server_main import _fork
from mb_host.ranks.start_methods import rank_starter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
ORDERS = RankSpec(rank=0, world_size=1, imports=(), environment={}, path=tuple(sys.path), folder=os.curdir)
ENDS = RankFileDescriptors(connection=0, lifeline=1, dump=2)


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "has ended"), (signal.SIGSTOP, r"take more than 0\.1 s")]
)
def test_a_server_that_does_not_reply_is_killed(number, reason):
    server = RankServer(env=os.environ, reply_seconds=0.1)
    try:
        os.kill(server.pid, number)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(CannotForkError, match=reason):
            server.fork(ORDERS, ENDS)
        assert not server.is_alive
        with pytest.raises(ProcessLookupError):
            os.kill(server.pid, 0)
    finally:
        server.close(grace_seconds=0.0)


def test_if_the_server_has_ended_another_one_forks(monkeypatch):
    class Ended:
        def fork(self, spec, ends):
            raise ServerEndedError

    class Alive:
        def fork(self, spec, ends):
            return "forked"

    servers = iter([Ended(), Alive()])
    monkeypatch.setattr("mb_host.ranks.start_methods.server_for", lambda added, *, env: next(servers))
    assert rank_starter("fork", added_env={}, env={})(ORDERS, ENDS) == "forked"


def test_if_fork_fails_the_reply_is_the_reason(monkeypatch):
    def no_fork():
        raise BlockingIOError("no process left")

    monkeypatch.setattr(os, "fork", no_fork)
    try:
        assert _fork(ORDERS, [0, 1], [], own=[]) == "fork failed: no process left"
    finally:
        gc.unfreeze()
