"""What happened in a run, read from its files: figures, a page to look at, text for a terminal."""
