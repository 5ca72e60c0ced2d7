"""hangs."""
