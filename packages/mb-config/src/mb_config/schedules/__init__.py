"""Schedules of learning rate and weight decay over a run.

`learning_rate.py` has their arithmetic, `annealing.py` the pairs of sections that recipes use.
"""
