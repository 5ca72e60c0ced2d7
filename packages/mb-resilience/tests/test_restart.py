from datetime import timedelta
from pathlib import Path

import pytest

from mb_resilience import InProcessRestartConfig, RestartSetupError
from mb_resilience.errors import SectionError
from mb_resilience.restarts.arguments import (
    Rendezvous,
    check_restart,
    max_attempts,
    monitor_log_path,
    ranks_per_node,
    wrapper_times,
)

ENVIRONMENT = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "8"}


def test_rendezvous_is_at_the_address_of_the_launcher_with_a_prefix_per_start():
    start = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert Rendezvous.from_environment({**ENVIRONMENT, **start}) == Rendezvous(
        host="node1", port=29500, rank=3, world_size=8, prefix="mb_resilience/restart/run/2"
    )


@pytest.mark.parametrize(
    "environment", [{"MASTER_ADDR": "node1"}, {"MASTER_PORT": "1"}, {"MASTER_PORT": "x"}]
)
def test_missing_rendezvous_is_rejected(environment):
    with pytest.raises(RestartSetupError, match="are not the address of a rendezvous"):
        Rendezvous.from_environment(environment)


@pytest.mark.parametrize("wrong", ["", "x", None])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_missing_rank_or_world_size_is_rejected(name, wrong):
    environment = {key: value for key, value in {**ENVIRONMENT, name: wrong}.items() if value is not None}
    with pytest.raises(RestartSetupError, match="do not identify this process"):
        Rendezvous.from_environment(environment)


def test_initialized_process_group_is_rejected():
    section = InProcessRestartConfig(enabled=True)
    check_restart(section, group_initialized=False)
    with pytest.raises(RestartSetupError, match="V245"):
        check_restart(section, group_initialized=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"soft_timeout": 90.0}, r"soft_timeout=90\.0 is not between 0 and hard_timeout=90\.0"),
        ({"hard_timeout": 150.0}, r"hard_timeout=150\.0 is not between 0 and barrier_timeout"),
        ({"heartbeat_interval": 0.0}, r"heartbeat_interval=0\.0"),
        ({"progress_watchdog_interval": 61.0}, r"progress_watchdog_interval=61\.0"),
        ({"max_iterations": -1}, "max_iterations=-1 is below 0"),
        ({"active_world_size": 0}, "active_world_size=0 is below 1"),
    ],
)
def test_invalid_settings_are_rejected(changed, words):
    with pytest.raises(SectionError, match=r"^\[R35\] .*" + words):
        check_restart(InProcessRestartConfig(enabled=True, **changed), group_initialized=False)


def test_every_time_is_passed_to_the_wrapper_under_its_name():
    section = InProcessRestartConfig(progress_watchdog_interval=7.0)
    times = wrapper_times(section)
    assert times["progress_watchdog_interval"] == timedelta(seconds=7)
    assert times == {
        name: timedelta(seconds=value) for name, value in vars(section).items() if isinstance(value, float)
    }


@pytest.mark.parametrize(("restarts", "attempts"), [(None, None), (0, 1), (3, 4)])
def test_first_attempt_is_not_a_restart(restarts, attempts):
    assert max_attempts(InProcessRestartConfig(max_iterations=restarts)) == attempts


def test_monitor_logs_have_an_absolute_path_with_the_rank():
    assert monitor_log_path(InProcessRestartConfig()) is None
    path = monitor_log_path(InProcessRestartConfig(monitor_process_logdir="logs"))
    assert path == str(Path.cwd() / "logs" / "monitor_{rank}.log")


def test_a_node_has_the_ranks_that_its_launcher_states():
    meeting = Rendezvous.from_environment(ENVIRONMENT)
    nodes, ranks = InProcessRestartConfig(), InProcessRestartConfig(granularity="rank")
    assert ranks_per_node(nodes, meeting, {"LOCAL_WORLD_SIZE": "4"}) == 4
    assert ranks_per_node(ranks, meeting, {}) is None
    assert ranks_per_node(nodes, Rendezvous.from_environment({}), {}) == 1


@pytest.mark.parametrize("environment", [{}, {"LOCAL_WORLD_SIZE": "0"}, {"LOCAL_WORLD_SIZE": "x"}])
def test_nodes_of_an_unknown_number_of_ranks_are_rejected(environment):
    """Each node would train with one of its ranks, and keep the others as spare ones."""
    with pytest.raises(
        RestartSetupError, match=r"granularity: node, with LOCAL_WORLD_SIZE=.* Set LOCAL_WORLD_SIZE"
    ):
        ranks_per_node(InProcessRestartConfig(), Rendezvous.from_environment(ENVIRONMENT), environment)
