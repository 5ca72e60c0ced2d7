"""restarts."""
