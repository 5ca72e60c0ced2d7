"""Program `mb-data` (extra `cli`): `app.py` has the options, and one file runs each command."""
