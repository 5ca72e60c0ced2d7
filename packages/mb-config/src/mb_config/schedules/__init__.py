"""Arithmetic of learning rate, weight decay and batch size over a run."""
