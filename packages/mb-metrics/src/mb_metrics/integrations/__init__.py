"""Classes for the loggers and callbacks of other training libraries."""
