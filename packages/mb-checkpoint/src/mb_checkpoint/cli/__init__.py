"""Program `mb-checkpoint` (extra `cli`): options in `app.py`, commands in `commands.py`, output in `text.py`."""
