"""Program `mb-config` (extra `cli`).

`app.py` has the commands, `options.py` their options, and one file runs each command.
"""
