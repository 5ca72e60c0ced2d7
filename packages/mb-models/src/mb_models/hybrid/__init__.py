"""hybrid."""
