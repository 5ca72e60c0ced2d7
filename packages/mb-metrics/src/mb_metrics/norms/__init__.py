"""norms."""
