"""Imported by Python at start: makes one rank fail in its fifth step, for tests of what the others do."""

import os
import warnings

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
