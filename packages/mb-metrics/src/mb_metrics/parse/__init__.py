"""Logs of trainers, read back into the records that their metrics would have been."""
