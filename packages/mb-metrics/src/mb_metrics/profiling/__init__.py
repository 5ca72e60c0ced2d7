"""Profiling of a window of steps: section, rules, the window, and the profilers that it starts and stops."""
