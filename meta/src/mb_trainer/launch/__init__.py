"""Launching through CloudAI: its arguments, what it checks, its command line, and what it reads of our logs."""
