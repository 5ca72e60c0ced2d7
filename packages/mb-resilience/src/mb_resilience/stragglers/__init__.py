"""stragglers."""
