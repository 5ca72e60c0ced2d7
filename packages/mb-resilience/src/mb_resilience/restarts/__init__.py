"""In-process restarts of a training function: `arguments.py` and `rules.py` check, `nvrx.py` wraps.

Around it: the store that outlives ranks, the process that keeps a dead rank's place, signals between attempts, and
collectives that wait for a dead peer.
"""
