"""Program `mb-data` (extra `cli`).

`app.py` has the commands, `options.py` their options; `build.py`, `index.py`, `inspect.py` and `at.py` run them, with
the bar of `progress.py`.
"""
