"""Connection to the monitor process of a fault-tolerance launcher. No torch, no NVRx."""

import os
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from mb_resilience.errors import NoMonitorError

SETUP, STEP, CHECKPOINTING = "setup", "step", "checkpointing"
"""Names of the sections, as in the options of the launcher."""
MONITOR_SOCKET = "FT_RANK_MONITOR_IPC_SOCKET"
"""Environment variable in which NVRx's launcher passes the socket of its monitor to each rank."""
SECTION_OPTION = "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420"
"""Option of NVRx's launcher that configures all sections, with initial timeouts in seconds."""


class MonitorClient(Protocol):
    """Connection of this rank to its monitor, such as NVRx's RankMonitorClient."""

    def init_workload_monitoring(self) -> None:
        """Connect to the monitor."""

    def shutdown_workload_monitoring(self) -> None:
        """Disconnect; the rank is no longer monitored."""

    def start_section(self, section: str) -> None:
        """Start a section; sections may overlap."""

    def end_section(self, section: str) -> None:
        """End a section."""

    def calculate_and_set_section_timeouts(
        self, selected_sections: Collection[str] | None = None, calc_out_of_section: bool = True
    ) -> bool:
        """Calculate timeouts from the longest durations over all ranks, and apply them. Collective over the world."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the calculated timeouts as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Apply previously calculated timeouts.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the state has another format, such as that of another
            version.
        """


def require_sections(monitored: Collection[str]) -> None:
    """Reject a monitor without a timeout for each section, because the monitor rejects unknown sections.

    Args:
        monitored: names of the sections that the launcher configured.

    Raises:
        NoMonitorError: a section is missing.
    """
    missing = [name for name in (SETUP, STEP, CHECKPOINTING) if name not in monitored]
    if missing:
        known = ", ".join(sorted(monitored)) or "none"
        raise NoMonitorError(
            f"ft.enable_ft_package: the monitor of this process has no timeout for {', '.join(missing)} (sections "
            f"configured: {known}). The monitor rejects sections that are not configured. Start ft_launcher with "
            f"{SECTION_OPTION}, or set ft.enable_ft_package=false."
        )


def require_monitor(environment: Mapping[str, str] | None = None) -> None:
    """Reject a process without a monitor.

    Args:
        environment: environment variables of the process; None for `os.environ`.

    Raises:
        NoMonitorError: no launcher has passed the socket of a monitor to this process.
    """
    environment = os.environ if environment is None else environment
    if not environment.get(MONITOR_SOCKET):
        raise NoMonitorError(
            f"ft.enable_ft_package: {MONITOR_SOCKET} is not set, so no monitor is running, and a rank that "
            "hangs would not be killed. Start the job with NVRx's ft_launcher, which takes torchrun's options, or set "
            "ft.enable_ft_package=false."
        )
