"""container."""
