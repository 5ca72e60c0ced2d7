"""Progress of a run as text.

`progress_recorder.py` is the callback that writes `progress.txt`, whose lines `progress_log.py` formats and reads;
`loss_printer.py` prints a line of losses.
"""
