"""Program `mb-launch` (extra `cli`), also mounted by trainers, which describe themselves by `launched_program.py`."""
