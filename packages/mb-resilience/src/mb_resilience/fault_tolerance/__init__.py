"""Sections of a run reported to a monitor that kills ranks which exceed their time.

`rules.py` check the settings; `section_reporter.py` reports through `monitor_client.py`, of which `nvrx_monitor.py`
is that of NVRx's launcher, and derives limits from observed durations (`section_timeouts.py`).
"""
