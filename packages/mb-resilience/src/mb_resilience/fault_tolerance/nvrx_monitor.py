"""Client of the monitor of nvidia-resiliency-ext's (NVRx's) fault-tolerance launcher. Imports NVRx."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from nvidia_resiliency_ext.fault_tolerance import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    RankMonitorClient,
    RankMonitorClientError,
)
from nvidia_resiliency_ext.fault_tolerance.data import OkMsg  # type: ignore[import-not-found,unused-ignore]
from nvidia_resiliency_ext.fault_tolerance.utils import (  # type: ignore[import-not-found,unused-ignore]
    read_obj_from_ipc_socket,
)

from mb_resilience.errors import NoMonitorError
from mb_resilience.fault_tolerance.monitor_client import MonitorClient, require_monitor, require_sections
from mb_resilience.fault_tolerance.section_timeouts import apply_minimum_timeouts

logger = logging.getLogger(__name__)


class MinimumTimeoutClient(RankMonitorClient):  # type: ignore[misc,unused-ignore]  # not everywhere
    """NVRx's client with calculated timeouts of at least `MIN_TIMEOUT_SECONDS`.

    A monitor that has ended is not an error of the rank. A scheduler that ends a job signals the processes of its
    monitors, too, which do not wait for the ranks; the ranks then save and exit without them.
    """

    rank_monitor_socket: Any
    _monitor_ended = False

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

    def shutdown_workload_monitoring(self) -> None:
        """Disconnect from the monitor, also from one that has ended."""
        try:
            super().shutdown_workload_monitoring()
        except OSError:  # the connection has been closed by the monitor
            self.rank_monitor_socket.close()
            self.rank_monitor_socket = None
            self.is_initialized = False

    def _ensure_response_is_ok(self, sock: Any) -> Any:
        reply = read_obj_from_ipc_socket(sock)
        if reply is None:
            raise ConnectionResetError("it has closed the connection")
        if not isinstance(reply, OkMsg):
            raise RankMonitorClientError(f"the monitor rejects a message: {reply}")
        return reply

    def _send_section_msg_impl(self, section: str, action: Any) -> None:
        if self._monitor_ended:
            return
        try:
            super()._send_section_msg_impl(section, action)
        except RankMonitorClientError as error:
            if not isinstance(error.__context__, OSError):
                raise
            self._continue_alone(error.__context__)

    def _set_calculated_timeouts(self, new_hb_timeouts: Any, new_section_timeouts: Any) -> None:
        try:
            if not self._monitor_ended:
                super()._set_calculated_timeouts(new_hb_timeouts, new_section_timeouts)
        except OSError as error:
            self._continue_alone(error)

    def _continue_alone(self, error: OSError) -> None:
        self._monitor_ended = True
        logger.warning(
            "ft.enable_ft_package: the monitor of this rank has ended (%s). From here on no hanging rank is detected. "
            "Normal while a scheduler ends the job.",
            error,
        )

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


def monitor_client() -> MonitorClient:
    """Return the client of the monitor that `ft_launcher` started for this rank; `SectionReporter` connects it.

    Raises:
        NoMonitorError: the process was not started by `ft_launcher`.
    """
    require_monitor()
    client: MonitorClient = MinimumTimeoutClient()
    return client
