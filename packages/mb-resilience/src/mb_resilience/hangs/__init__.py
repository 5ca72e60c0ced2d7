"""Detection of hanging ranks.

Each rank publishes its position (`rank_status_store`), `reporter.py` watches, and `report.py` finds the ranks at fault,
with the collectives that torch recorded.
"""
