"""The table of `first_run.py`: rows, the machine that they run on, and how they are run.

| file | noun |
|---|---|
| machine.py | environment of the rows: packages that are brought along, and the repository's own |
| row.py | one check: a process, its time limit, and what must hold when it has ended |
| running.py | processes, time limits, and the order of the rows |
| training_rows.py, resume_rows.py | rows that train gpt_tiny, and that resume and save |
| family_rows.py, pytest_rows.py | rows of further kinds of models, and of tests |
| speed_rows.py | rows of the ladder of settings, and of peers |
| table.py | all rows in order, and the tables that are printed |
| children.py | functions that run in a separate process and import torch |
| peers/ | programs of other trainers, measured in the same way |
"""
