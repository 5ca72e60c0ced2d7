"""Runs on Slurm: options of a job, its script, its queue, and defaults for each cluster."""
