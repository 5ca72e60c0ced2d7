"""Work between steps: checkpoints that are due, garbage collection on a schedule, checks of replicas."""
