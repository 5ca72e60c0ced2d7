"""Predicted time of a step, from sizes, layout and GPU; fitted to published runs."""
