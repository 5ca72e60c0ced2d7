"""Proof of an exact resume: what each rank held and made is written down in two runs, and compared bit for bit."""
