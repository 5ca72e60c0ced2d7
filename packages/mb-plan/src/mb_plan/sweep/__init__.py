"""Which of many settings are possible, and which of these are best.

`layouts` proposes parallel layouts, `grid` applies rules to every combination, `points` ranks those that pass and were
planned, `chart` draws them.
"""
