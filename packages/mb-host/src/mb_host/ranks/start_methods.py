"""Start methods of ranks: fork from a process that has the imports, or spawn a new interpreter."""

import sys
from collections.abc import Callable, Mapping
from typing import Literal

from mb_host.ranks.messages import RankFileDescriptors, RankSpec
from mb_host.ranks.process import ProcessHandle
from mb_host.ranks.server import CannotForkError, ServerEndedError, server_for
from mb_host.ranks.spawned_process import SpawnedProcess

StartMethod = Literal["fork", "spawn"]


def rank_starter(
    method: StartMethod, *, added_env: Mapping[str, str], env: Mapping[str, str]
) -> Callable[[RankSpec, RankFileDescriptors], ProcessHandle]:
    """Return a function that starts a rank. `env` is its environment, which includes `added_env`, that of the pool."""
    if method == "spawn" or sys.platform != "linux":
        return spawn
    server = server_for(added_env, env=env)

    def fork(spec: RankSpec, ends: RankFileDescriptors) -> ProcessHandle:
        try:
            try:
                return server.fork(spec, ends)
            except ServerEndedError:  # it ended after it was found alive
                return server_for(added_env, env=env).fork(spec, ends)
        except CannotForkError:  # a new interpreter works, or reports the error itself
            return spawn(spec, ends)

    return fork


def spawn(spec: RankSpec, ends: RankFileDescriptors) -> ProcessHandle:
    """Start a rank in a new interpreter."""
    arguments = (
        f"rank={spec.rank}, world_size={spec.world_size}, imports={spec.imports!r}, "
        f"connection_fd={ends.connection}, lifeline_fds=[{ends.lifeline}], dump_fd={ends.dump}"
    )
    program = (
        f"import sys; sys.path[:] = {[*spec.path]!r}; from mb_host.ranks.main import main; main({arguments})"
    )
    return SpawnedProcess(
        [sys.executable, "-c", program],
        env=spec.environment,
        pass_fds=(ends.connection, ends.lifeline, ends.dump),
        folder=spec.folder,
    )
