"""Reports on a run, read from its files: statistics, an HTML page, text for a terminal."""
