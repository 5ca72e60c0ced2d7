"""Client of the monitor of nvidia-resiliency-ext's (NVRx's) fault-tolerance launcher. Imports NVRx."""

from collections.abc import Collection, Mapping
from typing import Any

from nvidia_resiliency_ext.fault_tolerance import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    RankMonitorClient,
)

from mb_resilience.errors import NoMonitorError
from mb_resilience.monitor_client import MonitorClient, require_monitor, require_sections
from mb_resilience.section_timeouts import apply_minimum_timeouts


class MinimumTimeoutClient(RankMonitorClient):  # type: ignore[misc,unused-ignore]  # not everywhere
    """NVRx's client with calculated timeouts of at least `MIN_TIMEOUT_SECONDS`."""

    def init_workload_monitoring(self) -> None:
        """Connect to the monitor.

        Raises:
            NoMonitorError: the launcher configured no timeout for a section of `SectionReporter`.
        """
        super().init_workload_monitoring()
        try:
            require_sections(self.cfg.rank_section_timeouts)
        except NoMonitorError:
            self.shutdown_workload_monitoring()
            raise

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Calculate timeouts and apply them, raised to the minimum. Collective over the world."""
        done: bool = super().calculate_and_set_section_timeouts(
            selected_sections=selected_sections,
            calc_out_of_section=calc_out_of_section,
            skip_if_not_ready=skip_if_not_ready,
        )
        self.load_state_dict(self.state_dict())
        return done

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Apply previously calculated timeouts, raised to the minimum."""
        super().load_state_dict(apply_minimum_timeouts(state))


def monitor_client(environment: Mapping[str, str] | None = None) -> MonitorClient:
    """Return the client of the monitor that `ft_launcher` started for this rank; `SectionReporter` connects it.

    Args:
        environment: environment variables of the process; None for `os.environ`.

    Raises:
        NoMonitorError: the process was not started by `ft_launcher`.
    """
    require_monitor(environment)
    client: MonitorClient = MinimumTimeoutClient()
    return client
