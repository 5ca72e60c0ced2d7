"""The training loop: step, evaluation, microbatches, exit conditions, callbacks."""
