"""The door to nvidia-resiliency-ext (NVRx): the monitors of its launcher."""

import os
from collections.abc import Mapping

from nvidia_resiliency_ext.fault_tolerance import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    RankMonitorClient,
)

from mb_resilience.sections import MonitorClient, need_monitor


def monitor_client(environment: Mapping[str, str] = os.environ) -> MonitorClient:
    """Return this rank's line to the monitor that `ft_launcher` started for it; `Sections` connects it.

    Raises:
        NoMonitorError: the process was started by something else.
    """
    need_monitor(environment)
    client: MonitorClient = RankMonitorClient()
    return client
