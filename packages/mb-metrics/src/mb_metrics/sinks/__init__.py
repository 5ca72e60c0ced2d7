"""Sinks that write records to a destination; one module per destination."""
