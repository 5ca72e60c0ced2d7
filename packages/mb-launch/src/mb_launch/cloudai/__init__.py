"""Launches through NVIDIA CloudAI: test definition, constraints, launcher command line, and results from a log."""
