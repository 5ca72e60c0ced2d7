"""Imported by Python at start: faults for tests of what the other processes do.

One rank fails in its fifth step (FAULTY_RANK), or a process sends a signal at a file operation (SIGNAL_POINT).
"""

import os
import sys
import warnings
from pathlib import Path

# mb_loop.step.step imports torch here, before `mb` has its own filter of this warning
warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)

if "FAULTY_RANK" in os.environ:
    import mb_loop.step.step

    whole_step = mb_loop.step.step.TrainStep.__call__

    def faulty_step(self, step, batch):
        # read here, since a rank may be a fork of the launcher, which has no rank
        if step == 5 and os.environ.get("RANK") == os.environ["FAULTY_RANK"]:
            raise RuntimeError("a planted fault")
        return whole_step(self, step, batch)

    mb_loop.step.step.TrainStep.__call__ = faulty_step

if "SIGNAL_POINT" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import signal_points

    signal_points.install()
