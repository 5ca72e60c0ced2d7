"""overrides."""
