"""Parsers that convert logs of trainers to metrics records."""
