"""Stops before the last step, on which all ranks agree.

`signals.py` requests, `stop_requests.py` collects, and `agreed_stop.py` decides the step over a store,
through `decision_exchange.py`.
"""
