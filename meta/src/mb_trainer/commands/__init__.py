"""The work behind each command: words in, exit code out."""
