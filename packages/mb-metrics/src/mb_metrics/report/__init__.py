"""Reports on a run, read from its files: statistics, an HTML page, text for a terminal.

`run_reader.py` reads a run folder to the series and events of `run_history.py`; `time_split.py` attributes its time to
activities, `anomalies.py` finds unusual steps, and `incremental_statistics.py` computes the record of
`run_statistics.py`. `page.py` composes the page: tables of `html_tables.py`, the `timeline.py`, and the charts that
`chart_builder.py` selects. `server.py` keeps it up to date; `watch.py` and `text_plot.py` print to a terminal.
"""
