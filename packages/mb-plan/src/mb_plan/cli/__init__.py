"""The program `mb-plan`, and the texts of plans and sweeps that other programs print. Requires the extra `cli`.

`app.py` has the command; `plan_report.py`, `step_report.py` and `sweep_report.py` write the texts with `console.py`.
"""
