"""Imported by Python at start: a process sends a signal at a file operation, if SIGNAL_POINT is set."""

import os
import sys
from pathlib import Path

if "SIGNAL_POINT" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import signal_points

    signal_points.install()
