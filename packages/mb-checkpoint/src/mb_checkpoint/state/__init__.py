"""Parts of a run's state other than its weights and optimizer.

Counters (`train_state`), random streams (`rng`), the position in the data (`dataloader`, `position_copies`), the rerun
machine, callbacks, the metric of the last evaluation, the extra state of modules, and the adapters among the weights.
"""
