"""Signals, agreed stops and fault handling for distributed training."""
