"""Imported by Python at start: makes one rank fail in its fifth step, for tests of what the others do."""

import os

if os.environ.get("RANK") == os.environ.get("FAULTY_RANK", "none"):
    import mb_loop.step

    whole_step = mb_loop.step.TrainStep.__call__

    def faulty_step(self, step, batch):
        if step == 5:
            raise RuntimeError("a planted fault")
        return whole_step(self, step, batch)

    mb_loop.step.TrainStep.__call__ = faulty_step
