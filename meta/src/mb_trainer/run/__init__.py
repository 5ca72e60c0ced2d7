"""One run, from a configuration to its outcome.

`trainer.py` is called; `settle.py` completes the configuration with what the run folder and checkpoints hold,
`preflight.py` checks it, `build.py` builds model, optimizer, data and callbacks, and `train.py` runs the loop.
"""
