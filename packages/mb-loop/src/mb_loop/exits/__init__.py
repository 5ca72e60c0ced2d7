"""exits."""
