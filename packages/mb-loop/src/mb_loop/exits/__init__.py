"""Conditions for leaving the loop before its last step, agreed by all ranks, and the outcome that it returns."""
