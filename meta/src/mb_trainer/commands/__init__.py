"""Implementations of the commands: functions that take parsed arguments and return an exit code."""
