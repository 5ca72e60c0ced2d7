"""Runs on Slurm.

`options.py` reads the command line and `clusters.py` the defaults of a cluster; `job.py` checks both, `script.py`
writes the sbatch script, and `queue.py` submits it and follows its state.
"""
