"""Proof of an exact resume: a run with and without interruption, as commands in separate processes."""
