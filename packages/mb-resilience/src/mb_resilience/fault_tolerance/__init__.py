"""Sections of a run reported to a monitor that kills ranks which exceed their time."""
