"""The records, a file per topic, each with the functions that correct its faults.

Files load without torch: a correction imports it when it is made, and reads Megatron's names from the globals of the
function that it replaces. Read `distributed.py` first, then `catalogue.py`, which assembles them.
`rewriting.py` replaces single lines of long functions; `step_tokens.py` counts the tokens of a step before it runs.
"""
