"""Interpretation of shell scripts without running them: which commands a script would start, with which arguments.

`syntax` parses a script to statements, `expansion` expands the variables of their words, `conditions` decides `if` and
`case`, and `interpreter` follows the statements and records the commands. No program is started.
"""
